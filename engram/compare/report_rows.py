"""Rows of a report: scores of each model over its seeds."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engram.compare.comparison_folder import Runs, is_reference
from engram.compare.differences import LEAST_CLIENTS, Scores, share_worse
from engram.core.checks import must
from engram.core.streams import groups_of
from engram.runs.run import Run, took_part
from engram.scoring.evaluation import center_key, figures_of
from engram.scoring.intervals import deviation, grouped, mean_known
from engram.scoring.metrics import Metric
from engram.scoring.score_columns import COMMON, ELSEWHERE, TUNED, UNSEEN, VALIDATION
from engram.settings.data import DataSettings
from engram.settings.errors import Refused

UNTRAINED: Final = "untrained model"
NEW_CLIENTS: Final = ", new clients"  # after a row's name: clients that never train
CLOCK: Final = "simulated-seconds"  # column of the record: the simulated clock after a round
WORSE: Final = "-worse-than-local"  # after its name: share of clients, in that round


def shown_rounds(runs: Runs, which: str) -> Runs:
    """Returns runs as seen at their best rounds, or their last ones.

    Raises:
        Refused: ``which`` is neither ``picked`` nor ``last``.
    """
    if which not in ("picked", "last"):
        raise Refused(must("round", which, "picked or last"))
    if which == "picked":
        return runs
    return {
        name: [Run(one.folder, picks=False) for one in records] for name, records in runs.items()
    }


def models_of(runs: Runs) -> list[tuple[str, str, str]]:
    """Lists the rows' models: (label of the runs, name of the row, suffix).

    They are the models that serve clients and, where the runs have such scores, the same after
    fine-tuning. Which one it is, is the suffix of its columns.
    """
    found = []
    for label, (record, *_) in runs.items():
        found.append((label, label, ""))
        tuned = record.metrics[0].name + TUNED
        if any(tuned in row for row in record.rows()):
            found.append((label, f"{label} + fine-tuning", TUNED))
    return found


def curves_of(runs: Runs, metric: Metric) -> list[tuple[str, str, str]]:
    """Lists the curves over rounds: (label of the runs, name, suffix).

    Of runs of one method the global model is among them, unless it is what serves clients.
    """
    lines = models_of(runs)
    if len(runs) == 1:
        ((name, records),) = runs.items()
        common = metric.name + COMMON
        rows = [row for record in records for row in record.rows() if common in row]
        if any(row[common] != row[metric.name] for row in rows):
            lines.append((name, "global model", COMMON))
    return lines


def curve_points(
    runs: Runs, metric: Metric, method: str, which: str
) -> tuple[list[int], npt.NDArray[np.float64]]:
    """Rounds that all seeds evaluated, and the metric there (seeds, rounds).

    Side by side, methods begin after a round: at round 0, where no client has trained, some serve
    it by a fine-tuned model and others by the common one as it is.
    """
    key = center_key(metric.name + which, metric)
    each = [
        {row["round"]: row[key] for row in record.rows() if row.get(key) is not None}
        for record in runs[method]
    ]
    rounds = sorted(set.intersection(*({*own} for own in each)) - ({0} if len(runs) > 1 else set()))
    values = np.array([[own[r] for r in rounds] for own in each], dtype=float)
    return rounds, values * metric.scale


def report_rows(runs: Runs) -> list[dict[str, Any]]:
    """Returns a row for each model of each method, of one round of each run.

    It is the round with the best validation score of the row's model; the last one without
    validation rows, and the last evaluation so far of a run that is not finished.

    A method's row is of the models that serve clients; that of its name and ``+ fine-tuning``, of
    the same after fine-tuning. The entries of ``engram.scoring.evaluation.summary`` are means over
    runs: ``accuracy`` is of the row's model, ``accuracy-common`` of the global model, where there
    is one. ``accuracy-seed-std`` is the standard deviation of the row's mean accuracy over runs
    (None for one run), and ``selected-round`` the median of the rounds that are picked (None if
    they are the last ones).

    ``accuracy-clients`` counts the clients that have the score, in any run. Of fewer than three
    that are not all, mean and standard deviation are None. ``accuracy-worse-than-local`` is the
    share of clients, over runs, whose score in that round is below that of training by
    themselves, ``-low`` and ``-high`` are its interval: see
    ``engram.compare.differences.share_worse``. ``accuracy-elsewhere`` is the mean on other clients'
    test rows, with ``-low`` and ``-high`` as of ``engram.scoring.intervals.grouped``.

    ``rounds`` are those of the run with the fewest, ``members`` is the number of clients that have
    not left, and ``trained`` that of those of them that have trained. ``client-bytes`` are what a
    client receives and sends when it trains (None before a run is finished), ``client-gradients``
    the gradients of batches that it computes in a round, ``simulated-seconds`` are those up to the
    round, and ``client-ms`` is how long a client trains in a round: what its node says, or, where
    one process trains all, its share of the round. ``left-out`` counts how often a client was asked
    to train and gave no usable reply, ``epsilon`` (at ``delta``) is the most that a private run
    spent on a client, and ``finished`` says whether all rounds are done.
    """
    base, ended = alone(runs) or "", comparable(runs)
    by_themselves, others = ended.get(base, ()), ended.keys() - {base}
    return [
        _row(label, which, runs[name])
        | _of_clients(runs[name], which, by_themselves if name in others else ())
        for name, label, which in models_of(runs)
    ]


def alone(runs: Runs) -> str | None:
    """Label of local training; None without it."""
    for label, records in runs.items():
        common = records[0].metrics[0].name + COMMON
        if is_reference(label) and not any(common in row for row in records[0].rows()):
            return label
    return None


def _of_clients(records: Sequence[Run], which: str, base: Sequence[Run]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    if any(record.results is None for record in records):
        return found
    for metric in records[0].metrics:
        if not all(_has(record, metric.name + which) for record in records):
            continue
        scores = client_scores(records, metric.name, which)
        known = np.any([np.isfinite(each) for each in scores], axis=0)
        found[f"{metric.name}-clients"] = int(known.sum())
        if known.sum() < min(LEAST_CLIENTS, *(record.members for record in records)):
            found |= dict.fromkeys(metric.name + end for end in ("", "-std", "-variance", "-jain"))
        if all(_has(record, metric.name + which + ELSEWHERE) for record in records):
            found |= _elsewhere(records, metric, which)
        if base and all(_has(record, metric.name) for record in base):
            own = client_scores(base, metric.name)
            if share := share_worse(scores, own, metric.sign):
                key, ends = metric.name + WORSE, zip(("", "-low", "-high"), share, strict=True)
                found |= {key + end: x if np.isfinite(x) else None for end, x in ends}
    return found


def _elsewhere(records: Sequence[Run], metric: Metric, which: str) -> dict[str, float | None]:
    runs = []
    for record in records:
        e, results = record.settings, record.results or {}
        columns = (record.picked(which) or results)["clients"]
        scores = _column(record, columns, metric.name + which + ELSEWHERE)
        seen = sorted({*columns["ids"]} - {*results.get("unseen", ())})
        groups = (scores[some] for some in groups_of(e["seed"], seen, e["elsewhere"]))
        runs.append([known for some in groups if (known := some[np.isfinite(some)]).size])
    _, *ends = grouped(runs) if all(runs) else (np.inf, np.inf, np.inf)
    found = (
        np.clip(ends, metric.low, metric.high).tolist() if np.isfinite(ends).all() else [None] * 2
    )
    return dict(
        zip((f"{metric.name}{ELSEWHERE}{end}" for end in ("-low", "-high")), found, strict=True)
    )


def _row(label: str, which: str, records: Sequence[Run]) -> dict[str, Any]:
    curves, metrics = [record.rows() for record in records], records[0].metrics
    # The results of a run that was resumed because its last evaluation had failed have scores that
    # its metrics lack.
    last = [
        {**row, "round": row["rounds"]}
        if (row := record.results) is not None
        else [row for row in rows if metrics[0].name in row][-1]
        for record, rows in zip(records, curves, strict=True)
    ]
    selected = [record.picked(which) for record in records]
    shown = [one or other for one, other in zip(selected, last, strict=True)]
    figures: dict[str, float | None] = {}
    for metric in metrics:
        figures |= _figures(shown, metric, which)
        for key in (metric.name, UNSEEN + metric.name):
            known = [row for row in shown if key == metric.name or key + which in row]
            each = [value for row in known if (value := row[key + which]) is not None]
            figures[f"{key}-seed-std"] = deviation(each)
    trained = [row for rows in curves for row in rows if "ms" in row]
    ended = [record.results for record in records if record.results is not None]
    sizes = [found["client-bytes"] for found in ended if "client-bytes" in found]
    clocks = [{row["round"]: row.get(CLOCK) for row in rows} for rows in curves]
    seconds = (clock.get(at["round"]) for clock, at in zip(clocks, shown, strict=True))
    picked_rounds = [row["round"] for row in selected if row]
    return {
        "method": label,
        "runs": len(records),
        "rounds": min(row["round"] for row in last),
        "finished": len(ended) == len(records),
        **figures,
        "selected-round": float(np.median(picked_rounds)) if picked_rounds else None,
        "members": min(record.members for record in records),
        "trained": min(map(_trained, curves)),
        "scored": min(row["scored"] for row in last),
        "ms-per-round": float(np.median([row["ms"] for row in trained])) if trained else None,
        "client-ms": float(np.median([*map(_client_ms, trained)])) if trained else None,
        "client-gradients": mean_known(found.get("client-gradients") for found in ended),
        CLOCK: mean_known(seconds),
        "client-bytes": max(sizes, default=None),
        "left-out": sum(row["left-out"] for row in trained),
        "epsilon": max((row["epsilon"] for row in trained if "epsilon" in row), default=None),
        "delta": max((row["delta"] for row in trained if "delta" in row), default=None),
    }


def _has(record: Run, column: str) -> bool:
    """Whether a finished run's clients have a score, which a failed evaluation may lack."""
    results = record.results or {}
    return any(column in found["clients"] for found in (record.picked(), results) if found)


def _figures(
    results: Sequence[Mapping[str, Any]], metric: Metric, which: str
) -> dict[str, float | None]:
    found = {}
    for rows in ("", VALIDATION, UNSEEN):
        for model in ("", COMMON, ELSEWHERE):
            shown = COMMON if model == COMMON else which + model
            for end in figures_of(metric):
                key = f"{rows}{metric.name}{shown}{end}"
                if key in results[0]:
                    values = (row.get(key) for row in results)
                    found[f"{rows}{metric.name}{model}{end}"] = mean_known(values)
    key = f"{metric.name}-noise"
    if (noise := mean_known(row.get(key) for row in results)) is not None:
        found[key] = noise / len(results) ** 0.5
    return found


def _trained(rows: Sequence[Mapping[str, Any]]) -> int:
    """Returns the number of clients that have taken part in training, without those that left."""
    trained = set[int]().union(*map(took_part, rows))
    return len(trained.intersection(rows[-1].get("members", trained)))


def _client_ms(row: Mapping[str, Any]) -> float:
    own = row.get("seconds-training")
    return float(row["ms"] / len(row["cohort"]) if own is None else 1000 * own)


def told_round(row: Mapping[str, Any]) -> str:
    """Words for the round that a row of ``report_rows`` is of."""
    return f"after {row['rounds']} rounds" if row["selected-round"] is None else "at the best round"


def headings(metric: Metric) -> dict[str, str]:
    """Returns the figures of a table by heading: the ends of their names in a summary.

    The median stands beside the mean where it is what counts: see ``Metric.center``.
    """
    left_out = () if metric.center == "median" else ("-median",)
    called = {"": "mean", "-std": "s.d."}
    every = figures_of(metric)
    return {called.get(end, end.removeprefix("-")): end for end in every if end not in left_out}


def figures_of_clients(scores: npt.NDArray[np.float64], metric: Metric) -> tuple[float, ...]:
    """Computes the figures of ``headings`` of a seed's clients; NaN if none has a score."""
    known, functions = scores[np.isfinite(scores)], figures_of(metric)
    each = headings(metric).values()
    return tuple(float(functions[end](known)) if known.size else np.nan for end in each)


def others(
    runs: Runs, metric: Metric, references: Mapping[str, Scores]
) -> dict[str, dict[str, float]]:
    """Computes the figures of the baselines without a network, and of the untrained model.

    Returns:
        Figures by name, called as in ``report_rows``: means over seeds, and the standard deviation
        of the mean over seeds. The initial model is there if it was scored.
    """
    found = {
        name: [figures_of_clients(seed, metric) for seed in scores]
        for name, scores in references.items()
    }
    keys = [metric.name + COMMON + end for end in headings(metric).values()]
    for records in runs.values():  # not every method has a global model
        initial = [[record.rows()[0].get(key) for key in keys] for record in records]
        if not any(mean is None for mean, *_ in initial):
            found[UNTRAINED] = np.array(initial, float).tolist()
            break
    called = [metric.name + end for end in headings(metric).values()]
    rows = {}
    for name, seeds in found.items():
        known = [seed for seed in seeds if np.isfinite(seed[0])] or [(np.nan,) * len(called)]
        spread = deviation([seed[0] for seed in known])
        rows[name] = dict(zip(called, np.mean(known, axis=0).tolist(), strict=True))
        rows[name][f"{metric.name}-seed-std"] = np.nan if spread is None else spread
    return rows


def comparable(runs: Runs) -> Runs:
    """Finished methods; none unless all have the same clients and seeds."""
    ended = {label: own for label, own in finished(runs).items() if len(own) == len(runs[label])}
    first = next(iter(ended.values()), [])
    alike = all(
        len(records) == len(first) and all(map(same_clients, first, records))
        for records in ended.values()
    )
    return ended if alike else {}


def finished(runs: Runs) -> Runs:
    """Returns the runs that are finished, of the methods that have some."""
    each = {
        label: [record for record in records if record.results is not None]
        for label, records in runs.items()
    }
    return {label: ended for label, ended in each.items() if ended}


def same_clients(one: Run, other: Run) -> bool:
    """Whether two runs are of the same clients with the same rows."""
    mine, theirs = one.settings, other.settings
    return all(mine.get(key) == theirs.get(key) for key in ("seed", *DataSettings.all_keys()))


def client_scores(
    records: Sequence[Run], name: str, which: str = "", *, unseen: bool = False
) -> Scores:
    """Reads the scores of each run's clients at the best round.

    Args:
        records: Finished runs.
        name: The metric's.
        which: Of which model: those that serve clients; ``COMMON`` or ``TUNED``, if the runs have
            such scores. NaN where a client has no score.
        unseen: Whether clients that never train have theirs, in place of NaN.
    """
    found = []
    for record in records:
        columns = (record.picked(which) or record.results or {})["clients"]
        found.append(_column(record, columns, name + which, unseen=unseen))
    return found


def untrained(runs: Runs) -> dict[str, Scores]:
    """Returns the clients' scores of the initial model by metric, if it was scored.

    They are of the first method that has a global model, as in ``others``, and by the metrics that
    ``scores.jsonl`` has.
    """
    for records in runs.values():
        metrics, rows = records[0].metrics, [next(iter(r.scores()), {}) for r in records]
        if not all(row.get("round") == 0 for row in rows):
            continue
        keys = {metric.name: metric.name + COMMON for metric in metrics}
        pairs = [*zip(records, rows, strict=True)]
        found: dict[str, Scores] = {
            name: [_column(*pair, key) for pair in pairs]
            for name, key in keys.items()
            if all(key in row for row in rows)
        }
        if found:
            return found
    return {}


def _column(
    record: Run, columns: Mapping[str, Any], name: str, *, unseen: bool = False
) -> npt.NDArray[np.float64]:
    scores = np.full(record.clients, np.nan)
    scores[columns["ids"]] = np.array(columns[name], dtype=float)
    if not unseen:
        scores[np.array((record.results or {}).get("unseen", ()), dtype=int)] = np.nan
    return scores
