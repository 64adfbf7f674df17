"""Training of clients whose batches differ in size, by ways that need one size."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from engram.cohort.draws import Draws
from engram.cohort.round import Cohort, Held, Outcome

__all__ = ["each_size", "joined"]


def each_size(way: Callable[[Cohort], Outcome], cohort: Cohort) -> Outcome:
    """Trains clients with batches of the same size together, one size after the other.

    Args:
        way: Trains a cohort whose batches all have the same size.
        cohort: The clients; the batches of each have the same size in all steps.
    """
    sizes = cohort.draws.sizes
    if sizes is None:
        return way(cohort)
    groups = [np.flatnonzero(sizes[:, 0] == size).tolist() for size in np.unique(sizes[:, 0])]
    parts = [way(cohort.of(some)._replace(draws=_draws(cohort.draws, some))) for some in groups]
    return joined(parts, groups)


def joined(parts: Sequence[Outcome], groups: Sequence[Sequence[int]]) -> Outcome:
    """Joins the outcomes of groups of clients into one, in the order of their positions."""
    order = np.argsort(np.concatenate([np.asarray(some) for some in groups])).tolist()

    def together(*leaves: Tensor) -> Tensor:
        return torch.cat(leaves)[order]

    def join(trees: Sequence[Any]) -> Any:
        return tree_map(together, *trees)

    losses = [loss for part in parts for loss in part.losses]
    return Outcome(
        Held(join([part.sent.stack() for part in parts])),
        Held(join([part.kept.stack() for part in parts])),
        join([list(part.states) for part in parts]),
        [losses[i] for i in order] if losses else [],
        {
            some[i]: h
            for some, part in zip(groups, parts, strict=True)
            for i, h in part.broken.items()
        },
    )


def _draws(draws: Draws, some: list[int]) -> Draws:
    """Returns the draws of clients whose batches have as many rows, without padding."""
    mine = draws.of(some)
    assert mine.sizes is not None  # for mypy: each_size has looked
    size = int(mine.sizes[0, 0])

    def without_padding(numbers: Tensor) -> Tensor:
        first, rest = numbers[:, : draws.initial], numbers[:, draws.initial :]
        batches = rest.reshape(len(some), -1, draws.size)[:, :, :size]
        return torch.cat([first, batches.flatten(1)], dim=1)

    seeds = None if mine.seeds is None else without_padding(mine.seeds)
    return mine._replace(rows=without_padding(mine.rows), size=size, seeds=seeds, sizes=None)
