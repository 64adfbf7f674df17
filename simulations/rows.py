"""Rows of a report: what each method's models reach, over its seeds, and how far apart they are."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engram.metrics import Metric
from federation.methods.network import COMMON, TUNED, UNSEEN, VALIDATION
from federation.settings.data import DataSettings
from server.record import RunRecord
from simulations.comparison import Runs
from simulations.differences import Difference, Scores, paired_difference
from strategies.evaluation import center_key
from strategies.selection import selected_by

__all__ = [
    "SELECTED",
    "client_scores",
    "comparable",
    "curves_of",
    "differences_from",
    "ends",
    "others",
    "picked",
    "report_rows",
    "same_clients",
    "shown_models",
    "tail",
]

SELECTED: Final = "selected-"  # before a metric's name: in the round that validation rows pick


def shown_models(label: str, records: Sequence[RunRecord]) -> dict[str, str]:
    """Returns the models that rows are of, by the rows' names, as the suffixes of their columns.

    They are the models that serve clients and, where the runs have such scores, the same after
    fine-tuning.

    Args:
        label: A label of ``Runs``.
        records: Its runs.
    """
    tuned = records[0].metrics[0].name + TUNED
    there = any(tuned in row for row in records[0].rows())
    return {label: ""} | ({f"{label} + fine-tuning": TUNED} if there else {})


def curves_of(runs: Runs, metric: Metric) -> list[tuple[str, str, str]]:
    """Returns what is drawn against rounds: a label of the runs, a curve's, and which model.

    Of runs of one method the common model is among them, unless it is what serves clients.
    """
    models = {name: shown_models(name, records) for name, records in runs.items()}
    if len(runs) == 1:
        ((name, records),) = runs.items()
        common = metric.name + COMMON
        rows = [row for record in records for row in record.rows() if common in row]
        if any(row[common] != row[metric.name] for row in rows):
            models[name] |= {"common model": COMMON}
    return [(name, label, which) for name, own in models.items() for label, which in own.items()]


def report_rows(runs: Runs) -> list[dict[str, Any]]:
    """Returns a row for each model of each method, from the last evaluation of each run.

    A method's row is of the models that serve clients; that of its name and ``+ fine-tuning``, of
    the same after fine-tuning. The entries of ``strategies.evaluation.summary`` are means over
    runs: ``accuracy`` is of the row's model, ``accuracy-common`` of the common model, where there
    is one. ``accuracy-seed-std`` is the standard deviation of the row's mean accuracy over runs
    (None for one run). ``selected-accuracy`` is its mean accuracy after the round that validation
    rows pick for it, ``selected-validation-accuracy`` that on these rows, and ``selected-round``
    the median of these rounds; None unless all runs are finished and hold rows out. Of a metric
    whose ``center`` is the median, the first three are of medians over clients.

    ``rounds`` are those of the run with the fewest, and ``trained`` is the number of clients that
    have trained in them. ``client-bytes`` are what a client receives and sends when it trains (None
    before a run is finished), ``client-ms`` is how long a client trains in a round: what its node
    says, or, where one process trains all, its share of the round. ``left-out`` counts how often a
    client was asked to train and gave no usable reply, ``epsilon`` (at ``delta``) is the most that
    a private run spent on a client, and ``finished`` says whether all rounds are done.
    """
    return [
        _row(label, which, records)
        for name, records in runs.items()
        for label, which in shown_models(name, records).items()
    ]


def _row(label: str, which: str, records: Sequence[RunRecord]) -> dict[str, Any]:
    curves, metrics = [record.rows() for record in records], records[0].metrics
    # The results of a run that was resumed because its last evaluation had failed have scores that
    # its metrics lack.
    last = [
        {**row, "round": row["rounds"]}
        if (row := record.results) is not None
        else [row for row in rows if metrics[0].name in row][-1]
        for record, rows in zip(records, curves, strict=True)
    ]
    selected = [picked(record, which) for record in records]
    figures: dict[str, float | None] = {}
    for metric in metrics:
        name = metric.name
        figures |= _figures(last, metric, which)
        key = center_key(name + which, metric)
        figures[f"{name}-seed-std"] = _deviation([row[key] for row in last])
        for rows in ("", VALIDATION):
            values = [row[rows + key] for row in selected if row]
            whole = len(values) == len(records) and None not in values
            figures[SELECTED + rows + name] = float(np.mean(values)) if whole else None
    trained = [row for rows in curves for row in rows if "ms" in row]
    ended = [record.results for record in records if record.results is not None]
    picked_rounds = [row["round"] for row in selected if row]
    return {
        "method": label,
        "runs": len(records),
        "rounds": min(row["round"] for row in last),
        "finished": len(ended) == len(records),
        **figures,
        "selected-round": float(np.median(picked_rounds)) if picked_rounds else None,
        "trained": min(map(_trained, curves)),
        "scored": min(row["scored"] for row in last),
        "ms-per-round": float(np.median([row["ms"] for row in trained])) if trained else None,
        "client-ms": float(np.median([*map(_client_ms, trained)])) if trained else None,
        "client-bytes": max((found.get("client-bytes", 0) for found in ended), default=0) or None,
        "left-out": sum(row["left-out"] for row in trained),
        "epsilon": max((row["epsilon"] for row in trained if "epsilon" in row), default=None),
        "delta": max((row["delta"] for row in trained if "delta" in row), default=None),
    }


def _figures(
    results: Sequence[Mapping[str, Any]], metric: Metric, which: str
) -> dict[str, float | None]:
    """Returns the figures of a model, under the metric's name, and of the common model."""
    found = {}
    for rows in ("", VALIDATION, UNSEEN):
        for model in ("", COMMON):
            for end in ("", "-std", "-median", tail(metric), "-worst"):
                key = f"{rows}{metric.name}{model or which}{end}"
                if key in results[0]:
                    found[f"{rows}{metric.name}{model}{end}"] = _mean(results, key)
    return found


def _trained(rows: Sequence[Mapping[str, Any]]) -> int:
    """Returns the number of clients that have taken part in training."""
    each = (set(row.get("cohort", ())) - {int(c) for c in row.get("absent", ())} for row in rows)
    return len(set[int]().union(*each))


def _client_ms(row: Mapping[str, Any]) -> float:
    """Returns how long a client trained in a round, in milliseconds."""
    own = row.get("seconds-training")
    return float(row["ms"] / len(row["cohort"]) if own is None else 1000 * own)


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [row[key] for row in rows if row.get(key) is not None]
    return float(np.mean(values)) if values else None


def _deviation(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.std(known, ddof=1)) if len(known) > 1 else None


def tail(metric: Metric) -> str:
    """Returns the end of the key of the percentile of clients that are worse off."""
    return f"-p{10 if metric.better == 'higher' else 90}"


def ends(metric: Metric) -> dict[str, str]:
    """Returns the figures of a table by heading: the ends of their names in a summary.

    The median stands beside the mean where it is what counts: see ``Metric.center``.
    """
    median = {"median": "-median"} if metric.center == "median" else {}
    th = tail(metric)
    return {"mean": "", "s.d.": "-std", **median, th.removeprefix("-"): th, "worst": "-worst"}


def figures_of(scores: Scores, metric: Metric) -> tuple[float, ...]:
    """Returns the figures of ``ends`` of all clients."""
    everyone = np.concatenate([own[np.isfinite(own)] for own in scores])
    worse = np.percentile(everyone, int(tail(metric).removeprefix("-p")))
    worst = everyone.min() if metric.better == "higher" else everyone.max()
    median = [np.median(everyone)] if metric.center == "median" else []
    return tuple(map(float, (everyone.mean(), everyone.std(), *median, worse, worst)))


def others(
    runs: Runs, metric: Metric, references: Mapping[str, Scores]
) -> dict[str, tuple[float, ...]]:
    """Returns the figures of ``figures_of`` of all that no method has trained.

    Args:
        runs: The runs.
        metric: Of which figures.
        references: Scores of each client without a network, by name.

    Returns:
        By name: the references', and of the initial model, if it was scored, as means over seeds.
    """
    found: dict[str, tuple[float, ...]] = {
        name: figures_of(scores, metric) for name, scores in references.items()
    }
    keys = [metric.name + COMMON + end for end in ends(metric).values()]
    for records in runs.values():  # not every method has a common model
        initial = [[record.rows()[0].get(key) for key in keys] for record in records]
        if not any(value is None for seed in initial for value in seed):
            found["untrained model"] = tuple(np.mean(np.array(initial, float), axis=0).tolist())
            break
    return found


def comparable(runs: Runs) -> Runs:
    """Returns the methods whose runs are finished; none unless all are of the same clients."""
    ended = {
        label: records
        for label, records in runs.items()
        if all(record.results is not None for record in records)
    }
    first = next(iter(ended.values()), [])
    alike = all(
        len(records) == len(first) and all(map(same_clients, first, records))
        for records in ended.values()
    )
    return ended if alike else {}


def same_clients(one: RunRecord, other: RunRecord) -> bool:
    """Whether two runs are of the same clients with the same rows."""
    mine, theirs = one.config["settings"], other.config["settings"]
    return all(mine.get(key) == theirs.get(key) for key in ("seed", *DataSettings.all_keys()))


def differences_from(
    runs: Runs,
    rows: Sequence[Mapping[str, Any]],
    metric: Metric,
    references: Mapping[str, Scores] = MappingProxyType({}),
) -> tuple[str, dict[str, Difference]] | None:
    """Returns which row is the best on validation rows, and how far it is from each other one.

    The differences are of test rows, client by client, each run in the round that validation picks.

    Args:
        runs: The runs.
        rows: As ``report_rows`` returns them.
        metric: What is compared.
        references: Scores of each client without a network, by name.

    Returns:
        The best row's method, and its mean score less that of each other row of finished runs; None
        if they hold out no rows, or are not of the same seeds and clients.
    """
    key, runs = f"{SELECTED}{VALIDATION}{metric.name}", comparable(runs)
    rows = [row for row in rows if row["finished"]]
    if len(rows) < 2 or any(row[key] is None for row in rows) or not runs:
        return None
    scores = {
        label: client_scores(records, metric.name, which)
        for method, records in runs.items()
        for label, which in shown_models(method, records).items()
    }
    sign = 1 if metric.better == "higher" else -1
    best = str(max(rows, key=lambda row: sign * row[key])["method"])
    others = {label: theirs for label, theirs in scores.items() if label != best}
    others |= references
    try:
        return best, {label: paired_difference(scores[best], s) for label, s in others.items()}
    except ValueError:
        return None


def picked(record: RunRecord, which: str = "") -> dict[str, Any] | None:
    """Returns the scores after the round that validation rows pick for a model, by its own scores.

    For the common model it is the round of the models that serve clients. None if the run is not
    finished, or holds no rows out.
    """
    results = record.results or {}
    return results.get(selected_by(which), results.get(selected_by("")))


def client_scores(records: Sequence[RunRecord], name: str, which: str = "") -> Scores:
    """Returns the scores of each run's clients that train, in the round that validation rows pick.

    Args:
        records: Finished runs.
        name: The metric's.
        which: Of which model: those that serve clients; ``COMMON`` or ``TUNED``, if the runs have
            such scores. NaN where a client has no score.
    """
    found: list[npt.NDArray[np.float64]] = []
    for record in records:
        results = record.results or {}
        clients = (picked(record, which) or results)["clients"]
        unseen = results.get("unseen", ())
        scores = np.full(record.config["settings"]["num-clients"], np.nan)
        scores[clients["ids"]] = np.array(clients[name + which], dtype=float)
        scores[np.array(unseen, dtype=int)] = np.nan
        found.append(scores)
    return found
