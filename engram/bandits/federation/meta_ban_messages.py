"""Messages between server and sites about users' networks: questions, predictions, gradients.

Arms, predictions and networks are float64.
"""

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import torch

from engram.bandits.networks import Weights
from engram.bandits.replay import Drawn
from engram.core.arrays import Array
from engram.core.types import Params
from engram.scoring.score_columns import LARGEST
from engram.wire.wire import floats_record, read_array, read_floats

ASKED: Final = "asked"  # config key, the question: offer, predictions, gradients or play
ARM: Final = "arm"  # config key: which arm to play
MEMBERS: Final = "members"  # config key: the clients among whom the turn is drawn
ARMS: Final = "arms"
PREDICTIONS: Final = "predictions"

_MOST_ARMS = 1000
_ROUNDING = 1e-9
_LEAST_SHARE = 1e-6  # of the rows, by which a gradient may be divided


def read_arms(record: Params, dim: int) -> Array:
    """Reads arms, shape (K, d), with the errors of ``read_floats``."""
    shape = tuple(record[ARMS].shape)
    arms = read_floats(record, ARMS, (shape[0] if shape else 0, dim))
    if not 1 <= len(arms) <= _MOST_ARMS:
        raise ValueError(f"arms must be 1 to {_MOST_ARMS}, got {len(arms)}")
    if not _usable(arms):
        raise ValueError("some arms are NaN or infinite, or too large")
    return arms


def read_predictions(record: Params, shape: tuple[int, int]) -> Array:
    """Reads predictions of n clients for K arms, (n, K), with the errors of ``read_floats``."""
    found = read_floats(record, PREDICTIONS, shape)
    if not _usable(found):
        raise ValueError("some predictions are NaN or infinite, or too large")
    return found


def _usable(numbers: Array) -> bool:
    """Whether no number is NaN, and no product of two can overflow."""
    return bool((np.abs(numbers) <= LARGEST).all())


def network_record(weights: Weights) -> Params:
    """Serializes M networks' parameters or gradients: ``theta.k`` for layer k, (M, out, in)."""
    return {f"theta.{k}": w.detach() for k, w in enumerate(weights)}


def read_network(record: Params, widths: Sequence[int], count: int) -> Weights:
    """Reads a ``network_record`` of ``count`` networks.

    ``widths`` are d and the widths of the hidden layers.

    Raises:
        KeyError: If a layer is missing.
        ValueError: One has another shape or dtype, or numbers that are NaN or infinite.
        TypeError: One is not what it is declared to be.
    """
    shapes = [(count, above, below) for below, above in pairwise([*widths, 1])]
    found = [read_floats(record, f"theta.{k}", shape) for k, shape in enumerate(shapes)]
    if not all(np.isfinite(layer).all() for layer in found):
        raise ValueError("some parameters or gradients are NaN or infinite")
    return tuple(map(torch.from_numpy, found))


def drawn_of(clients: Collection[int], drawn: Drawn) -> Drawn | None:
    """Returns the rows drawn that are these clients'; None if there are none.

    Users are clients. Each network has as many entries; those beyond its own rows have share 0.
    """
    own = np.isin(drawn.users, list(clients)) & (drawn.shares > 0)
    width = int(own.sum(axis=1).max(initial=0))
    if width == 0:
        return None
    first = np.argsort(~own, axis=1, kind="stable")[:, :width]
    users, slots, shares, mine = (
        np.take_along_axis(part, first, axis=1)
        for part in (drawn.users, drawn.slots, drawn.shares, own)
    )
    nobody = min(clients)
    return Drawn(
        drawn.runs,
        np.where(mine, users, nobody),
        np.where(mine, slots, 0),
        np.where(mine, shares, 0.0),
    )


def question_record(weights: Weights, drawn: Drawn) -> Params:
    """Serializes a question for the loss's gradients on some rows, at given networks.

    It has the M networks, and ``clients``, ``slots`` and ``shares`` of the rows drawn, (M, n).
    """
    _, users, slots, shares = drawn
    record = network_record(weights)
    numbers = {"clients": users, "slots": slots}
    record.update({k: torch.from_numpy(a.astype(np.int64)) for k, a in numbers.items()})
    record.update(floats_record(shares=shares))
    return record


def read_question(
    record: Params, widths: Sequence[int], clients: Collection[int]
) -> tuple[Weights, Drawn]:
    """Reads a ``question_record``.

    Raises:
        KeyError: If an array is missing.
        ValueError: One has another shape or dtype, or it is about other clients.
        TypeError: One is not what it is declared to be.
    """
    shape = tuple(record["shares"].shape)
    if len(shape) != 2:
        raise ValueError(f"shares must have two axes, got shape {shape}")
    shares = read_floats(record, "shares", shape)
    if not ((shares >= 0).all() and (shares.sum(axis=1) <= 1 + _ROUNDING).all()):
        raise ValueError("shares must be at least 0, and those of a network at most 1 in all")
    users, slots = (
        read_array(record[name], shape, torch.int64).numpy().astype(np.intp)
        for name in ("clients", "slots")
    )
    if not np.isin(users, list(clients)).all() or (slots < 0).any():
        raise ValueError("it asks about rows of other clients")
    weights = read_network(record, widths, shape[0])
    return weights, Drawn(np.zeros(shape[0], dtype=np.intp), users, slots, shares)


def summed(
    weights: Weights, drawn: Drawn, heard: Collection[int], parts: Sequence[Weights]
) -> Weights:
    """Sums sites' gradients, rescaled to a mean over the answering clients' rows.

    The sites were asked about the rows ``drawn``, whose users are clients; those of the clients
    ``heard`` answered with ``parts``, in the shapes (M, out, in) of the weights.
    """
    lost = np.where(np.isin(drawn.users, list(heard)), 0.0, drawn.shares).sum(axis=1)
    scale = torch.from_numpy(1 / np.where(lost < 1 - _LEAST_SHARE, 1 - lost, 1.0))[:, None, None]
    zeros = tuple(map(torch.zeros_like, weights))
    return tuple(scale * torch.stack(layers).sum(0) for layers in zip(zeros, *parts, strict=True))
