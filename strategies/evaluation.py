"""Clients' scores, and summaries of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord

from engram.metrics import Metric
from federation.columns import Column
from federation.methods.local import COMMON, KEPT, PERSONALIZED
from federation.wire import read_list

__all__ = ["Evaluation", "Impossible", "Scored", "read_scores", "summary"]

_MOST_ROWS = 2**31  # a client must have fewer

Scored = dict[int, dict[str, float]]
"""Each client's scores, by the names of their columns."""


class Impossible(ValueError):
    """A node sent impossible scores."""


class Evaluation(NamedTuple):
    """The scores of all clients that were scored.

    Attributes:
        clients: These clients, ascending.
        columns: Their scores, in this order; NaN for a client without one.
    """

    clients: list[int]
    columns: dict[str, npt.NDArray[np.float64]]

    @classmethod
    def of(cls, scored: Scored) -> Self:
        """Returns the scores of at least one client as columns."""
        clients = sorted(scored)
        names = scored[clients[0]]
        return cls(clients, {n: np.array([scored[c][n] for c in clients], float) for n in names})

    def listed(self, counts: str) -> dict[str, list[Any]]:
        """Returns each client's scores for ``results.json``, with None for NaN and infinity.

        Args:
            counts: Name of the column of whole numbers.
        """
        found: dict[str, list[Any]] = {"ids": self.clients}
        for name, column in self.columns.items():
            found[name] = [value if np.isfinite(value) else None for value in column.tolist()]
        return found | {counts: self.columns[counts].astype(int).tolist()}


def read_scores(
    record: ConfigRecord, ids: Sequence[int], columns: Sequence[Column], counts: str, *, least: int
) -> Scored:
    """Reads and checks the scores that a node sent; values are capped at ``Metric.most``.

    Args:
        record: What the node sent.
        ids: Its clients.
        columns: The columns that it must hold.
        counts: Name of the column of numbers of rows.
        least: Lowest possible number of rows.

    Raises:
        Impossible: If a score is out of its metric's range.
        KeyError: If a column is missing.
        TypeError: If one is not a list of numbers.
        ValueError: If lists do not fit each other.
    """
    found = {column.name: read_list(record, column.name, float) for column in columns}
    rows = read_list(record, counts, int)
    lengths = [len(column) for column in (ids, rows, *found.values())]
    if len(set(lengths)) > 1:
        raise ValueError(f"lists of equal lengths are needed, got {lengths}")
    if not all(least <= count < _MOST_ROWS for count in rows):
        raise Impossible(f"{counts} must lie in {least}..{_MOST_ROWS - 1}")
    for column in columns:
        if reason := column.impossible(found[column.name]):
            raise Impossible(reason)
        found[column.name] = column.counted(found[column.name])
    names, table = (*found, counts), zip(*found.values(), rows, strict=True)
    return {c: dict(zip(names, row, strict=True)) for c, row in zip(ids, table, strict=True)}


def summary(evaluation: Evaluation, metrics: Sequence[Metric]) -> dict[str, Any]:
    """Summarizes an evaluation over all clients.

    For each metric, such as ``accuracy``: ``accuracy``, ``accuracy-std`` and ``accuracy-median``
    are the mean, the standard deviation and the median over clients after personalization, and
    ``accuracy-p10`` the 10th percentile, or ``-p90`` the 90th where lower is better.
    ``accuracy-before`` is the mean before personalization. ``accuracy-own`` is the mean score of
    the own models that ``own-clients`` clients keep. ``scored`` is the number of clients scored. An
    entry is None if a client's value is infinite, as after divergence, or if no client has one.

    Scores are self-reported. All clients count alike, however many rows they claim: one liar among
    n clients moves a mean by at most a metric's range over n, and fewer than half cannot move the
    median out of the range of the others.
    """
    found: dict[str, Any] = {"scored": len(evaluation.clients), "own-clients": 0}
    for metric in metrics:
        name, tail = metric.name, 10 if metric.better == "higher" else 90
        columns = {
            which: column[~np.isnan(column)]
            for which in (PERSONALIZED, COMMON, KEPT)
            for column in [evaluation.columns[name + which]]
        }
        tuned = columns[PERSONALIZED]
        found[name] = _figure(np.mean, tuned)
        found[f"{name}-std"] = _figure(np.std, tuned)
        found[f"{name}-median"] = _figure(np.median, tuned)
        found[f"{name}-p{tail}"] = _figure(lambda v, q=tail: np.percentile(v, q), tuned)
        found |= {name + which: _figure(np.mean, columns[which]) for which in (COMMON, KEPT)}
        found["own-clients"] = max(found["own-clients"], columns[KEPT].size)
    return found


def _figure(function: Any, values: npt.NDArray[np.float64]) -> float | None:
    with np.errstate(invalid="ignore"):
        value = float(function(values)) if values.size else np.nan
    return value if np.isfinite(value) else None
