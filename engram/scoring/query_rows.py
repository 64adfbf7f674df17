"""Rows that clients are scored on, and rows that they fine-tune on."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engram.core.streams import Stream, generator
from engram.core.types import Batch
from engram.data.federated import Split
from engram.data.lazy import RowNumbers

if TYPE_CHECKING:
    from engram.settings.experiment import Experiment


class Queries(NamedTuple):
    """Rows that c clients are scored on, (c, q), and a mask of those that are not padding."""

    split: Split
    rows: Tensor
    counted: Tensor


class Support(NamedTuple):
    """Rows that c clients fine-tune on, (c, n), in batches of ``size`` rows."""

    split: Split
    rows: Tensor
    size: int

    @property
    def edges(self) -> list[tuple[int, int]]:
        """First row of each batch, and the end of the last."""
        return [(at, at + self.size) for at in range(0, self.rows.shape[1], self.size)]

    def batches(self) -> Iterator[Batch]:
        """Gathers the batches: inputs and targets, each (c, k, ...)."""
        for start, stop in self.edges:
            yield self.split.take(self.rows[:, start:stop])


def padded(
    split: Split, rows: Sequence[RowNumbers] | Mapping[int, RowNumbers], clients: Sequence[int]
) -> Queries:
    """Returns the clients' rows, padded to the same number for each."""
    counts = np.array([[len(rows[client])] for client in clients])
    place = np.arange(counts.max())
    at = counts.cumsum()[:, None] - counts + np.minimum(place, counts - 1)
    filled = np.concatenate([rows[client] for client in clients])[at]
    arrays = map(torch.from_numpy, (filled, place < counts))
    return Queries(split, *(array.to(split.y.device) for array in arrays))


def query_rows(experiment: "Experiment", test: Split, client: int) -> RowNumbers:
    """Returns a client's scored test rows: all, or all but its support rows."""
    if experiment.protocol != "few-shot":
        return test.rows[client]
    return shuffled(experiment, test, client)[experiment.adapt_shots :]


def shuffled(experiment: "Experiment", test: Split, client: int) -> RowNumbers:
    """Returns a client's test rows in random order: support rows first."""
    rng = generator(experiment.seed, Stream.SUPPORT, client)
    return rng.permutation(test.rows[client])


def tuned_on(e: "Experiment", client: int, own: RowNumbers, count: int) -> RowNumbers:
    """Returns ``count`` rows to fine-tune on: drawn, or all in turn if they fit into a batch."""
    if len(own) <= e.batch_size:
        return np.tile(own, count // len(own))
    return own[generator(e.seed, Stream.FINE_TUNING, client).integers(len(own), size=count)]
