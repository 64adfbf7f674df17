"""Splits of published benchmarks: each client's rows, as their generators draw them."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.data.file_models import Stored
from engram.data.lazy import RowNumbers

Dealt = list[tuple[RowNumbers, RowNumbers]]
"""Training rows and test rows of each client."""


class Split(Stored, extra="forbid"):
    """Parameters of a split by PFLlib's ``dataset_utils.py``.

    Counts by client and class depend on these numbers alone, and not on the order of the rows.

    Attributes:
        class_sizes: Runs of classes of one size: (number of classes, rows of each).
        clients: Number of clients.
        classes: Classes of each client, of a pathological split; 0 for a Dirichlet split.
        alpha: Concentration of a Dirichlet split.
        seed: The generator's.
        train_share: Share of a client's rows to train on.
        batch_size: Rows that a client has for testing, at least, of a Dirichlet split.
    """

    class_sizes: list[list[int]]
    clients: int
    classes: int = 0
    alpha: float = 0.0
    seed: int
    train_share: float
    batch_size: int

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Rows of each class, (classes,)."""
        runs = np.array(self.class_sizes)
        return np.repeat(runs[:, 1], runs[:, 0])

    @property
    def least(self) -> int:
        """Rows of a client, at least."""
        enough = self.batch_size / (1 - self.train_share)
        return int(min(enough, self.sizes.sum() / self.clients / 2))


def deal(split: Split, y: npt.NDArray[np.int64]) -> Dealt:
    """Deals rows of classes ``y``, (n,), which must be of ``split.sizes``.

    All numbers are from one stream of NumPy's legacy generator, which is the same in every release:
    for the classes in turn, then for the clients in turn.
    """
    rng = np.random.RandomState(split.seed)
    rows = [np.flatnonzero(y == label) for label in range(len(split.sizes))]
    held = _pathological(split, rows, rng) if split.classes else _dirichlet(split, rows, rng)
    return [_parted(own, split.train_share, rng) for own in held]


def _pathological(split: Split, rows: list[RowNumbers], rng: Any) -> list[RowNumbers]:
    """Deals each class to the first clients with too few classes, in blocks of random sizes."""
    lacking = np.full(split.clients, split.classes)
    held: list[list[RowNumbers]] = [[] for _ in lacking]
    most = math.ceil(split.clients / len(rows) * split.classes)
    for own in rows:
        chosen = np.flatnonzero(lacking)[:most]
        lacking[chosen] -= 1
        share = len(own) / len(chosen)
        low = max(share / 10, split.least / len(rows))
        sizes = rng.randint(int(low), int(share), len(chosen) - 1)  # the last takes the rest
        for client, block in zip(chosen, np.split(own, np.cumsum(sizes)), strict=True):
            held[client].append(block)
    return [np.concatenate(blocks) for blocks in held]


def _dirichlet(split: Split, rows: list[RowNumbers], rng: Any) -> list[RowNumbers]:
    """Deals each class in shares from a Dirichlet distribution, to clients below the mean size.

    All is drawn again until every client has ``split.least`` rows.
    """
    counts, mean = np.zeros(split.clients), split.sizes.sum() / split.clients
    while counts.min() < split.least:
        counts[:] = 0
        held: list[list[RowNumbers]] = [[] for _ in counts]
        for own in rows:
            order = rng.permutation(own)
            shares = rng.dirichlet(np.full(split.clients, split.alpha)) * (counts < mean)
            ends = (np.cumsum(shares / shares.sum()) * len(own)).astype(int)[:-1]
            for client, block in enumerate(np.split(order, ends)):
                held[client].append(block)
                counts[client] += len(block)
    return [np.concatenate(blocks) for blocks in held]


def _parted(own: RowNumbers, train_share: float, rng: Any) -> tuple[RowNumbers, RowNumbers]:
    """Parts rows into those to train on and those to test on, as scikit-learn's split does."""
    order = own[rng.permutation(len(own))]
    tested = len(own) - math.floor(train_share * len(own))
    return order[tested:], order[:tested]


def count_rows(dealt: Dealt, y: npt.NDArray[np.int64], classes: int) -> npt.NDArray[np.int64]:
    """Counts rows by client, part (to train on, to test on) and class: (clients, 2, classes)."""
    return np.array(
        [[np.bincount(y[part], minlength=classes) for part in parts] for parts in dealt]
    )
