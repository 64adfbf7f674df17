"""Results of a run or a comparison by a metric: its rows, references and claims."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from engram.compare.claims import Claims, answer_of, claims_of
from engram.compare.comparison_folder import Runs
from engram.compare.differences import Scores
from engram.compare.references import NAMES, read_notes, read_references
from engram.compare.report_rows import (
    NEW_CLIENTS,
    UNTRAINED,
    comparable,
    others,
    report_rows,
    untrained,
)
from engram.core.checks import must
from engram.scoring.metrics import Metric
from engram.scoring.score_columns import UNSEEN
from engram.settings.errors import Refused


class Results(NamedTuple):
    """Results by a metric.

    Attributes:
        metric: The metric.
        rows: Of methods' models, as ``report_rows`` returns them.
        beside: Figures of each row's model for clients that never train, where there are any, and
            of what no method has trained, as ``others`` returns them; NaN for a reference that is
            left out.
        references: Scores of each client by references, for each seed.
        claims: The differences that the runs show; None where nothing can be compared.
        notes: By reference, the rows that it learns from, or why it is left out.
    """

    metric: Metric
    rows: Sequence[Mapping[str, Any]]
    beside: Mapping[str, Mapping[str, float]]
    references: Mapping[str, Scores]
    claims: Claims | None
    notes: Mapping[str, str]

    @property
    def answer(self) -> str:
        """The result in a sentence or two.

        It sets the best method beside the best simple baseline, with the interval of their
        difference; of runs that cannot be compared, it has the means of all, the best first.
        """
        if self.claims:
            return answer_of(self.claims)
        metric = self.metric
        means = {row["method"]: row[metric.name] for row in self.rows}
        others = self.beside.items()
        means |= {n: each[metric.name] for n, each in others if not n.endswith(NEW_CLIENTS)}
        known = {
            name: mean for name, mean in means.items() if mean is not None and not np.isnan(mean)
        }
        order = sorted(known, key=lambda name: -metric.sign * known[name])
        told = ", ".join(f"{name} {metric.with_unit(known[name], 1)}" for name in order)
        return f"Mean {metric.name} over clients, on test rows: {told}."


def references_of(folder: Path, runs: Runs) -> dict[str, dict[str, Scores]]:
    """Returns each client's scores by each reference, for each seed, by metric.

    Those of models without a network are in the folder.
    """
    first, whole = next(iter(runs.values())), comparable(runs)
    initial = untrained(whole) if next(iter(runs)) in whole else {}
    return {
        metric.name: {
            **read_references(folder, first, metric.name),
            **({UNTRAINED: initial[metric.name]} if metric.name in initial else {}),
        }
        for metric in first[0].metrics
    }


def results_of(folder: Path, runs: Runs, metrics: Sequence[Metric]) -> list[Results]:
    """Returns the results by each metric of at least one run, in the folder with its references."""
    rows, scores, notes = report_rows(runs), references_of(folder, runs), read_notes(folder)
    found = []
    for metric in metrics:
        known = scores[metric.name]
        missing = {name: {metric.name: np.nan} for name in notes if name not in known}
        each = missing | others(runs, metric, known)
        beside = _new_clients(rows, metric) | {
            name: each[name] for name in (*NAMES, *each) if name in each
        }
        claims = claims_of(runs, rows, metric, known)
        found.append(Results(metric, rows, beside, known, claims, notes))
    return found


def _new_clients(rows: Sequence[Mapping[str, Any]], metric: Metric) -> dict[str, dict[str, float]]:
    return {
        f"{row['method']}{NEW_CLIENTS}": {
            key.removeprefix(UNSEEN): np.nan if value is None else value
            for key, value in row.items()
            if key.startswith(UNSEEN + metric.name)
        }
        for row in rows
        if UNSEEN + metric.name in row
    }


def metric_called(name: str, metrics: Sequence[Metric]) -> Metric:
    """Returns the metric of a name; without a name, the first.

    Raises:
        Refused: None is called so.
    """
    known = {metric.name: metric for metric in metrics}
    name = name or next(iter(known))
    if name not in known:
        raise Refused(must("metric", name, f"one of {', '.join(known)}"))
    return known[name]


def metrics_of(runs: Runs) -> Sequence[Metric]:
    """Returns the metrics of runs, without the loss."""
    return next(iter(runs.values()))[0].metrics[:-1]
