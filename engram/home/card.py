"""Model cards for people: a model's description, training data and scores.

``Learned.origin`` (on nodes that of ``node_export``) fills the table, and ``evidence`` the scores;
for tables, both are of ``tables.federation.models``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from engram.core.arrays import Array
from engram.data.ranges import Range, inputs_in, ranges_of
from engram.data.schema.columns import Kind, Schema
from engram.home.exported import Exported, Package
from engram.home.learned import Origin
from engram.home.prediction_intervals import Interval
from engram.home.serving import form_of
from engram.networks.base import Outputs
from engram.scoring.intervals import of_draws, of_mean, of_proportion
from engram.scoring.metrics import Metric
from engram.scoring.score_metrics import measure
from engram.scoring.tasks import TASKS
from engram.settings.families import METHODS
from engram.settings.run import MachineSettings

FOLDS: Final = 5  # number of folds of cross-validation on a newcomer's rows

UNLABELED: Final = (
    "The rows have no targets: it is the common model, and nothing has been learned from them."
)
"""The note of a model for a newcomer without targets."""

_TRIED: Final = 5  # samples on which a metric may be a mean over rows
_RANGES: Final = (
    "`model.json` has for each input the range, rounded, of eight of ten of the rows. Whoever has "
    "the file knows these ranges."
)
_INTERVALS: Final = (
    "The target of a new row lies within this distance of the prediction with at least this "
    "probability (split conformal prediction), provided that new rows are like the client's rows "
    "from which it is known, which the model has not learned from. If the scores are by "
    "cross-validation, the probability is approximate."
)


class ScoreEstimate(NamedTuple):
    """A model's score on some rows, with its confidence interval."""

    metric: str
    value: float | None  # None if it is not defined on these rows
    low: float | None = None  # end of the 95 % confidence interval; None if there is none
    high: float | None = None


class Evidence(NamedTuple):
    """Evidence of a model from rows."""

    scores: dict[str, list[ScoreEstimate]]  # by what they are of, figures
    ranges: Sequence[Range] = ()  # where the inputs lie in the rows that it has learned from
    intervals: Sequence[Interval] = ()  # of predictions, where these are values

    @classmethod
    def of_table(
        cls,
        scores: dict[str, list[ScoreEstimate]],
        x: Array,
        schema: Schema,
        intervals: Sequence[Interval],
    ) -> Self:
        """Returns figures, the ranges of a table's columns, and intervals."""
        found = inputs_in(torch.from_numpy(x), schema)
        return cls(scores, ranges_of(found), intervals)


def scored(metrics: Sequence[Metric], outputs: Outputs, targets: Tensor) -> list[ScoreEstimate]:
    """Returns a model's scores on rows (n, ...), with intervals for new rows like these.

    A share of hits has Clopper and Pearson's interval; a mean over rows, or its root or exponential
    such as rmse, that of the bootstrap-t; all else, that of the percentile bootstrap.
    """
    return [_scored(metric, outputs, targets) for metric in metrics]


def _scored(metric: Metric, outputs: Outputs, targets: Tensor) -> ScoreEstimate:
    def value(some: npt.NDArray[np.int64]) -> float:
        every = torch.ones(1, len(some), dtype=torch.bool)
        rows = torch.from_numpy(some)
        drawn = tree_map(lambda leaf: leaf[rows][None], outputs)
        return float(measure(metric, drawn, targets[rows][None], every))

    size = len(targets)
    figure = value(np.arange(size))
    if not np.isfinite(figure):
        return ScoreEstimate(metric.name, None)
    rows = _of_rows(metric, outputs, targets)
    if metric.by_row:
        rows = rows[~np.isnan(rows)]
    hits = metric.by_row and (metric.low, metric.high) == (0, 1) and np.isin(rows, (0, 1)).all()
    if hits:
        return ScoreEstimate(metric.name, figure, *of_proportion(float(rows.sum()), len(rows)))
    link = _link(metric, rows, value)
    ends = of_draws(size, value) if link is None else of_mean(link.of(rows))
    if ends is None:
        return ScoreEstimate(metric.name, figure)
    low, high = ends if link is None else map(link.back, ends)
    return ScoreEstimate(metric.name, figure, max(low, metric.low), min(high, metric.high))


def _of_rows(metric: Metric, outputs: Outputs, targets: Tensor) -> npt.NDArray[np.float64]:
    """Returns the metric of each row by itself, (n,); NaN where it has none of a single row."""
    every = torch.ones(len(targets), 1, dtype=torch.bool)
    try:
        apart = tree_map(lambda leaf: leaf[:, None], outputs)
        return measure(metric, apart, targets[:, None], every).double().numpy()
    except Exception:  # a metric of a user's may need several rows, and raise what it likes
        if metric.by_row:
            raise
        return np.full(len(targets), np.nan)


class _Link(NamedTuple):
    """A function of rows' values, with a mean that gives the overall value."""

    of: Callable[[Any], Any]
    back: Callable[[float], float]


_LINKS: Final = (
    _Link(lambda rows: rows, lambda mean: mean),
    _Link(np.square, lambda mean: float(np.sqrt(max(mean, 0.0)))),
    _Link(np.log, lambda mean: float(np.exp(mean))),
)


def _link(
    metric: Metric, rows: npt.NDArray[np.float64], value: Callable[[Any], float]
) -> _Link | None:
    """Returns the link that makes a metric a mean over rows, or None.

    Where it is not known, it is tried on several samples of the rows: a score such as F1 may be a
    mean on one of them, and then is none on others.
    """
    if metric.by_row:
        return _LINKS[0]
    if not np.isfinite(rows).all() or np.ptp(rows) == 0:
        return None
    rng, size = np.random.default_rng(1), len(rows)
    samples = [np.arange(size), *(rng.integers(size, size=size) for _ in range(_TRIED))]
    for link in _LINKS:
        with np.errstate(divide="ignore", invalid="ignore"):
            means = [link.back(float(link.of(rows[some]).mean())) for some in samples]
        if np.allclose(means, [value(some) for some in samples], rtol=1e-4, atol=1e-6):
            return link
    return None


def mean_of(name: str, rows: Tensor) -> ScoreEstimate:
    """Returns the mean of the rows' values (n,), with an interval by the bootstrap-t."""
    values = rows.double().numpy()
    if not np.isfinite(values).all():
        return ScoreEstimate(name, None)
    return ScoreEstimate(name, float(values.mean()), *(of_mean(values) or (None, None)))


def of_network(
    origin: Origin, module: nn.Module, kind: Kind, evidence: Evidence, notes: Sequence[str] = ()
) -> Package:
    """Returns a network for rows of a kind, with its evidence and its card."""
    outputs = TASKS[origin.experiment.task].targets
    about = form_of(module), outputs, kind.class_names, origin.client, origin.source
    exported = Exported(origin.what, origin.settings, kind, *about)
    return packaged(origin, exported, module, evidence, notes)


def packaged(
    origin: Origin,
    exported: Exported,
    module: nn.Module,
    evidence: Evidence,
    notes: Sequence[str],
    table: str = "",
) -> Package:
    """Returns a model with its evidence and its card."""
    exported = exported._replace(ranges=evidence.ranges, intervals=evidence.intervals)
    scores, notes = _cells(evidence.scores), [*notes, *origin.notes]
    settings, method = exported.settings, METHODS[exported.settings["method"]]
    inputs = ", ".join(exported.kind.schema.names) if exported.kind.schema else ""
    about = {
        "method": f"{method.name}: {method.meaning}"
        + (f" ({method.source})" * bool(method.source)),
        "network": settings.get("model", "a linear model"),
        "inputs": inputs or exported.kind.inputs,
        "outputs": f"{exported.outputs}: {', '.join(exported.classes)}",
        "learned from": origin.rows,
        "source": exported.source,
        **origin.made,
    }
    lines = [f"# {exported.what[0].upper()}{exported.what[1:]}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in about.items()]
    lines += ["", "## Scores", ""]
    lines += _table(scores) if scores else ["None: there are no scores of this model here."]
    lines += ["", "## Intervals", "", *_intervals(exported)] if exported.intervals else []
    lines += ["", "## Privacy", "", _privacy(origin.privacy), ""]
    lines += [_RANGES, ""] if exported.ranges else []
    lines += ["## Notes", "", *(f"- {note}" for note in notes), ""] if notes else []
    lines += ["## Settings", "", "| setting | value |", "|---|---|"]
    aside = {*MachineSettings.all_keys(), "out", "resume", "timeout"}
    known = {key: value for key, value in settings.items() if key not in aside}
    lines += [f"| `{key}` | {_cell(value)} |" for key, value in known.items()]
    return Package(exported, module, "\n".join(lines) + "\n", scores, notes, table)


def _cells(scores: Mapping[str, Sequence[ScoreEstimate]]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for what, some in scores.items():
        for score in some:
            none = score.value is None or not np.isfinite(score.value)
            ends = "-" if score.low is None else f"{score.low:.4g} to {score.high:.4g}"
            found.append((what, score.metric, "-" if none else f"{score.value:.4g}", ends))
    return found


def _intervals(exported: Exported) -> list[str]:
    rows = [
        f"| {level:.0%} | {', '.join(f'{radius:.4g}' for radius in radii)} |"
        for level, radii in exported.intervals
    ]
    return [_INTERVALS, "", "| probability | within |", "|---|---|", *rows]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| rows | metric | value | 95 % interval |", "|---|---|---|---|"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def _privacy(privacy: Mapping[str, Any] | None) -> str:
    if privacy is None:
        return "Trained with differential privacy. The coordinator knows the privacy spent."
    if "epsilon" not in privacy:
        return "Trained without differential privacy."
    return (
        f"What the run has sent is differentially private: epsilon {privacy['epsilon']:.4g} at "
        f"delta {privacy['delta']:.4g} for the client that was asked most often. The model has "
        "also learned from the client's own rows, which these figures do not cover."
    )


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
