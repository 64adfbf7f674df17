"""What runs found, side by side: one row an algorithm, over its seeds."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich import box
from rich.table import Table

from federation.errors import Refused
from server.record import RunRecord

__all__ = ["PLAN", "Runs", "find_runs", "read_plan", "report_rows", "report_table"]

Runs = dict[str, list[RunRecord]]  # by algorithm, one record a seed
PLAN: Final = "comparison.json"  # in a comparison's folder: each run's name and settings


def read_plan(folder: Path) -> dict[str, Any]:
    """Returns what a comparison is made of: its ``engine``, and the settings of its ``runs``.

    Raises:
        Refused: If the folder is not that of a comparison, or the file is damaged.
    """
    path = folder / PLAN
    if not path.is_file():
        raise Refused(f"{folder} is not the folder of a comparison: it has no {PLAN}")
    try:
        plan: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not {"engine", "runs"} <= plan.keys():
            raise ValueError("it lacks engine or runs")
    except (ValueError, AttributeError) as error:
        raise Refused(f"{path} is damaged: {error}") from error
    return plan


def find_runs(folder: Path) -> Runs:
    """Returns the runs in a folder: a single run, or the runs of a comparison.

    Raises:
        Refused: If the folder is neither that of a run nor that of a comparison.
    """
    parts = [folder]
    if (folder / PLAN).is_file():
        named = [folder / name for name in read_plan(folder)["runs"]]
        parts = [part for part in named if (part / "metrics.jsonl").is_file()]
    runs: Runs = {}
    for part in parts:
        record = RunRecord.open(part)
        if not any("accuracy" in row for row in record.rows()):
            continue  # it has only just begun
        runs.setdefault(record.config["settings"]["algorithm"], []).append(record)
    return runs


def report_rows(runs: Runs) -> list[dict[str, Any]]:
    """Returns the figures of each algorithm, from the last evaluation of each of its runs.

    Each is a mean over runs; ``accuracy-std`` is the standard deviation over clients, and
    ``accuracy-seed-std`` that of the mean accuracy over runs (None for one run). ``rounds`` are
    those of the run that has the fewest, ``left-out`` counts the times that a client was asked
    to train and gave no usable reply, ``epsilon`` (at ``delta``) is the most that a private run
    spent on a client, and ``finished`` says whether all rounds are done.
    """
    return [_row(algorithm, records) for algorithm, records in runs.items()]


def _row(algorithm: str, records: Sequence[RunRecord]) -> dict[str, Any]:
    curves = [record.rows() for record in records]
    # A finished run may have been scored once more than its metrics tell, when it was resumed
    # because its last evaluation had failed.
    last = [
        {**row, "round": row["rounds"]}
        if (row := record.results) is not None
        else [row for row in rows if "accuracy" in row][-1]
        for record, rows in zip(records, curves, strict=True)
    ]

    def over_runs(key: str) -> float | None:
        values = [row[key] for row in last if row[key] is not None]
        return float(np.mean(values)) if values else None

    keys = ("accuracy", "accuracy-std", "accuracy-p10", "accuracy-before", "accuracy-own")
    trained = [row for rows in curves for row in rows if "ms" in row]
    return {
        "algorithm": algorithm,
        "runs": len(records),
        "rounds": min(row["round"] for row in last),
        "finished": all(record.results is not None for record in records),
        **{key: over_runs(key) for key in keys},
        "accuracy-seed-std": _deviation([row["accuracy"] for row in last]),
        "own-clients": min(row["own-clients"] for row in last),
        "scored": min(row["scored"] for row in last),
        "ms-per-round": float(np.median([row["ms"] for row in trained])) if trained else None,
        "left-out": sum(row["left-out"] for row in trained),
        "epsilon": max((row["epsilon"] for row in trained if "epsilon" in row), default=None),
        "delta": max((row["delta"] for row in trained if "delta" in row), default=None),
    }


def _deviation(values: Sequence[float]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


_TITLE = (
    "Accuracy in %: mean ± sd and 10th percentile over all clients, personalized;\n"
    "before personalizing; of the models that clients keep; milliseconds a round"
)


def report_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Returns the figures as a table; accuracies in percent."""
    table = Table(title=_TITLE, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column("algorithm", no_wrap=True)
    headings = ("rounds", "personal ± sd", "p10", "before", "own", "± seeds", "ms")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["algorithm"],
            f"{row['rounds']}{'' if row['finished'] else '...'}",
            f"{_percent(row['accuracy'])} ± {_percent(row['accuracy-std'])}",
            _percent(row["accuracy-p10"]),
            _percent(row["accuracy-before"]),
            _percent(row["accuracy-own"]),
            _percent(row["accuracy-seed-std"]),
            "-" if row["ms-per-round"] is None else f"{row['ms-per-round']:.1f}",
        )
    return table


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"
