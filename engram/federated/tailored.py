"""Arrays that a server makes for each client, once the client has taken part.

The server's state has them, or what they are made of, for every client of the federation, and which
clients it knows. All others are sent the model's arrays.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from engram.aggregates import Update
from engram.types import Params

__all__ = ["KNOWN", "meet", "nobody", "or_common"]

KNOWN: Final = "known"
"""Name, in the state, of which clients have taken part: 1 or 0, (N,)."""


def nobody(clients: int) -> Params:
    """Returns the state's entry before the first round."""
    return {KNOWN: torch.zeros(clients)}


def meet(state: Params, updates: Sequence[Update]) -> tuple[list[int], Params]:
    """Returns the clients that took part in a round, and the state's entry after it."""
    cohort = [update.client for update in updates]
    return cohort, {KNOWN: state[KNOWN].index_fill(0, torch.tensor(cohort), 1.0)}


def or_common(own: Params, model: Params, state: Params, clients: Sequence[int]) -> Params:
    """Returns the arrays that clients are sent.

    Args:
        own: Those made for them, with a leading client axis.
        model: What clients are sent that have not taken part.
        state: As ``meet`` returns it.
        clients: Which.
    """
    knows = state[KNOWN][list(clients)] > 0

    def chosen(leaf: Tensor, common: Tensor) -> Tensor:
        return torch.where(knows.view(-1, *[1] * common.ndim), leaf, common)

    return {name: chosen(leaf, model[name]) for name, leaf in own.items()}
