"""Messages between server and sites about users' networks: questions, predictions, gradients.

Arms, predictions and networks are float64.
"""

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import torch
from flwr.app import ArrayRecord

from engram.bandits.networks import Weights
from engram.bandits.replay import Drawn
from engram.core.arrays import Array
from engram.scoring.score_columns import LARGEST
from engram.wire.wire import floats_record, read_array, read_floats, to_record

ASKED: Final = "asked"  # config key, the question: offer, predictions, gradients or play
ARM: Final = "arm"  # config key: which arm to play
MEMBERS: Final = "members"  # config key: the clients among whom the turn is drawn
ARMS: Final = "arms"
PREDICTIONS: Final = "predictions"

_MOST_ARMS = 1000
_ROUNDING = 1e-9


class Question(NamedTuple):
    """A question for the loss's gradient on some rows, at given parameters of M networks."""

    weights: Weights  # shapes (M, out, in)
    # Numbers of the rows for each network; users are clients. Entries with share 0 are ignored.
    drawn: Drawn


def arms_record(arms: Array) -> ArrayRecord:
    """Serializes arms, shape (K, d)."""
    return floats_record(arms=arms)


def read_arms(record: ArrayRecord, dim: int) -> Array:
    """Reads what ``arms_record`` wrote; errors are those of ``read_floats``."""
    shape = tuple(record[ARMS].shape)
    arms = read_floats(record, ARMS, (shape[0] if shape else 0, dim))
    if not 1 <= len(arms) <= _MOST_ARMS:
        raise ValueError(f"arms must be 1 to {_MOST_ARMS}, got {len(arms)}")
    if not _usable(arms):
        raise ValueError("some arms are NaN or infinite, or too large")
    return arms


def predictions_record(predictions: Array) -> ArrayRecord:
    """Serializes predictions of n clients for K arms, shape (n, K)."""
    return floats_record(predictions=predictions)


def read_predictions(record: ArrayRecord, shape: tuple[int, int]) -> Array:
    """Reads what ``predictions_record`` wrote; errors are those of ``read_floats``."""
    found = read_floats(record, PREDICTIONS, shape)
    if not _usable(found):
        raise ValueError("some predictions are NaN or infinite, or too large")
    return found


def _usable(numbers: Array) -> bool:
    """Whether no number is NaN, and no product of two can overflow."""
    return bool((np.abs(numbers) <= LARGEST).all())


def network_record(weights: Weights) -> ArrayRecord:
    """Serializes M networks' parameters or gradients: ``theta.k`` for layer k, (M, out, in)."""
    return to_record({f"theta.{k}": w for k, w in enumerate(weights)})


def read_network(record: ArrayRecord, widths: Sequence[int], count: int) -> Weights:
    """Reads what ``network_record`` wrote for ``count`` networks.

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


def question_for(clients: Collection[int], question: Question) -> Question | None:
    """Returns the part of a question about rows of these clients; None if there is none."""
    drawn = question.drawn
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
    part = Drawn(
        drawn.runs,
        np.where(mine, users, nobody),
        np.where(mine, slots, 0),
        np.where(mine, shares, 0.0),
    )
    return question._replace(drawn=part)


def question_record(question: Question) -> ArrayRecord:
    """Serializes the networks, and ``clients``, ``slots`` and ``shares`` of the rows, (M, n)."""
    _, users, slots, shares = question.drawn
    record = network_record(question.weights)
    numbers = {"clients": users, "slots": slots}
    record.update(to_record({k: torch.from_numpy(a.astype(np.int64)) for k, a in numbers.items()}))
    record.update(floats_record(shares=shares))
    return record


def read_question(record: ArrayRecord, widths: Sequence[int], clients: Collection[int]) -> Question:
    """Reads what ``question_record`` wrote.

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
    return Question(weights, Drawn(np.zeros(shape[0], dtype=np.intp), users, slots, shares))
