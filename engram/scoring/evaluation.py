"""Clients' scores, and summaries of them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from engram.scoring.metrics import Metric
from engram.scoring.score_columns import MODELS, UNSEEN, VALIDATION, Column
from engram.strategies.running.reply_border import Impossible
from engram.strategies.running.screening import mean_of, owners
from engram.wire.wire import read_list

_MOST_ROWS = 2**31  # a client must have fewer
_MEDIAN = "-median"  # end of a summary's name

Scored = dict[int, dict[str, float]]
"""By client, its scores by column name."""


class Evaluation(NamedTuple):
    """The scores of all clients that were scored.

    Attributes:
        clients: These clients, ascending.
        columns: Their scores, in this order; NaN for a client without one.
        noise: The deviation of local privacy's noise on a client's scores, by column.
    """

    clients: list[int]
    columns: dict[str, npt.NDArray[np.float64]]
    noise: Mapping[str, float] = MappingProxyType({})

    @classmethod
    def of(cls, scored: Scored) -> Self:
        """Returns the scores of at least one client as columns."""
        clients = sorted(scored)
        names = scored[clients[0]]
        return cls(clients, {n: np.array([scored[c][n] for c in clients], float) for n in names})

    @property
    def silent(self) -> list[int]:
        """The clients without a single score."""
        scores = [column for name, column in self.columns.items() if name != "queries"]
        return [self.clients[i] for i in np.flatnonzero(np.isnan(scores).all(axis=0))]

    def listed(self, counts: str) -> dict[str, list[Any]]:
        """Returns each client's scores for ``results.json``, with None for NaN and infinity."""
        found: dict[str, list[Any]] = {"ids": self.clients}
        for name, column in self.columns.items():
            found[name] = [value if np.isfinite(value) else None for value in column.tolist()]
        return found | {counts: self.columns[counts].astype(int).tolist()}


def read_scores(
    record: Mapping[str, Any],
    ids: Sequence[int],
    columns: Sequence[Column],
    counts: str,
    *,
    least: int,
) -> Scored:
    """Reads and checks a node's scores, by column; values are capped at ``Metric.most``.

    ``counts`` names the column of numbers of rows, which are ``least`` or more.

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


def center(values: npt.NDArray[np.float64], metric: Metric) -> float:
    """Returns ``Metric.center`` of the clients that were scored; NaN if none was."""
    known = values[~np.isnan(values)]
    if not known.size:
        return np.nan
    return float(known.mean() if metric.center == "mean" else np.median(known))


def center_key(name: str, metric: Metric) -> str:
    """Returns the name in a summary of ``Metric.center`` of a column."""
    return name + (_MEDIAN if metric.center == "median" else "")


def outlying(
    evaluation: Evaluation, metrics: Sequence[Metric], unseen: Collection[int] = ()
) -> dict[str, list[int]]:
    """Returns, by metric, the clients that own the mean of the served models' scores.

    A metric whose range has two ends has no such client, and is left out, as is one without any.
    """
    seen = np.array([client not in unseen for client in evaluation.clients])
    found: dict[str, list[int]] = {}
    for metric in metrics:
        scores = evaluation.columns[metric.name]
        known = np.flatnonzero(seen & ~np.isnan(scores))
        far = known[owners(scores[known])] if metric.center == "median" else known[:0]
        if far.size:
            found[metric.name] = [evaluation.clients[i] for i in far]
    return found


def summary(
    evaluation: Evaluation, metrics: Sequence[Metric], unseen: Collection[int] = ()
) -> dict[str, Any]:
    """Summarizes an evaluation over all clients that train.

    For each metric, such as ``accuracy``: ``accuracy`` is its mean over clients of the models that
    serve them, ``accuracy-common`` that of the common model, and ``accuracy-tuned`` that of the
    served models after fine-tuning, where there are such. Each name may end in ``-std``, the
    standard deviation over clients; ``-variance``, its square; ``-jain``, Jain's index of fairness;
    ``-median``; ``-p10``, the 10th percentile, or ``-p90``, the 90th, where lower is better; and
    ``-worst``, the value of the client that is worst off. Names that begin with ``validation-`` are
    of the rows held out for validation, with ``unseen-`` of clients that never train; after
    ``-elsewhere``, figures are of other clients' test rows. ``scored`` is the number of clients
    scored. An entry is None if a client's value is infinite, as after
    divergence, or if no client has one; and so are mean and deviation of a metric without bounds
    where a single client owns them (``owners``). Of scores with noise there are means alone, and
    ``accuracy-noise``, the standard deviation of the noise in ``accuracy``.

    Scores are self-reported. All clients count alike, however many rows they claim: one liar among
    n clients moves a mean by at most a metric's range over n, and fewer than half cannot move the
    median out of the range of the others.
    """
    found: dict[str, Any] = {"scored": len(evaluation.clients)}
    new = np.array([client in unseen for client in evaluation.clients])
    for metric in metrics:
        found |= _figures(evaluation, metric, metric.name, ~new)
        if metric.name in evaluation.noise:
            count = np.isfinite(evaluation.columns[metric.name][~new]).sum()
            found[f"{metric.name}-noise"] = evaluation.noise[metric.name] / max(count, 1) ** 0.5
        if unseen:
            found |= {
                UNSEEN + name: figure
                for name, figure in _figures(evaluation, metric, metric.name, new).items()
            }
        if VALIDATION + metric.name in evaluation.columns:
            found |= _figures(evaluation, metric, VALIDATION + metric.name, ~new)
    return found


def jain(values: npt.NDArray[np.float64]) -> float:
    """Returns Jain's index of fairness, from 1 / n to 1, where all are alike; NaN below zero.

    Jain, Chiu, Hawe. A Quantitative Measure of Fairness. DEC-TR-301, 1984.
    """
    squares = len(values) * (values**2).sum()
    return float(values.sum() ** 2 / squares) if squares > 0 and values.min() >= 0 else np.nan


def figures_of(metric: Metric) -> dict[str, Callable[..., Any]]:
    """Returns the functions of figures over clients, by the ends of their names in a summary."""
    tail = 10 if metric.better == "higher" else 90
    return {
        "": np.mean,
        "-std": np.std,
        "-variance": np.var,
        "-jain": jain,
        _MEDIAN: np.median,
        f"-p{tail}": partial(np.percentile, q=tail),
        "-worst": np.min if metric.better == "higher" else np.max,
    }


def _figures(
    evaluation: Evaluation, metric: Metric, rows: str, clients: npt.NDArray[np.bool_]
) -> dict[str, float | None]:
    mean = mean_of(metric)
    figures = figures_of(metric) | {
        "": mean,
        "-std": lambda values: np.std(values) + 0 * mean(values),  # NaN where there is no mean
        "-variance": lambda values: np.var(values) + 0 * mean(values),
    }
    found: dict[str, float | None] = {}
    for which in MODELS:
        name = rows + which
        if name in evaluation.columns:
            values = evaluation.columns[name][clients]
            values = values[~np.isnan(values)]
            ranked = values[:0] if evaluation.noise else values  # noise has no worst client
            found |= {name + k: _figure(of, ranked if k else values) for k, of in figures.items()}
    return found


def _figure(function: Any, values: npt.NDArray[np.float64]) -> float | None:
    with np.errstate(invalid="ignore"):
        value = float(function(values)) if values.size else np.nan
    return value if np.isfinite(value) else None
