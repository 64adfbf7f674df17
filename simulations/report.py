"""What runs found, side by side: one row an algorithm, over its seeds."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.table import Table

from server.record import RunRecord

__all__ = ["PLAN", "Runs", "find_runs", "report_rows", "report_table"]

Runs = dict[str, list[RunRecord]]  # by algorithm, one record a seed
PLAN: Final = "comparison.json"  # in a comparison's folder: each run's name and settings


def find_runs(folder: Path) -> Runs:
    """Returns the runs in a folder: the run that it is, or those of the comparison that it is.

    Raises:
        Refused: It is neither.
    """
    if (folder / PLAN).is_file():
        plan: dict[str, Any] = json.loads((folder / PLAN).read_text())
        parts = [folder / name for name in plan if (folder / name / "config.json").is_file()]
    else:
        parts = [folder]
    runs: Runs = {}
    for part in parts:
        record = RunRecord.open(part)
        runs.setdefault(record.config["settings"]["algorithm"], []).append(record)
    return runs


def report_rows(runs: Runs) -> list[dict[str, Any]]:
    """Returns the figures of each algorithm whose runs are finished.

    Each is a mean over seeds; ``accuracy-std`` is the standard deviation over clients, and
    ``accuracy-seed-std`` that of the mean accuracy over seeds (None for one seed).
    """
    rows = []
    for algorithm, records in runs.items():
        found = [results for record in records if (results := record.results) is not None]
        if found:
            rows.append(_row(algorithm, found))
    return rows


def _row(algorithm: str, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def over_seeds(key: str) -> float | None:
        values = [results[key] for results in found if results[key] is not None]
        return float(np.mean(values)) if values else None

    keys = ("accuracy", "accuracy-std", "accuracy-p10", "accuracy-before", "accuracy-own")
    accuracies = [results["accuracy"] for results in found]
    return {
        "algorithm": algorithm,
        "seeds": len(found),
        "rounds": found[0]["rounds"],
        **{key: over_seeds(key) for key in keys},
        "accuracy-seed-std": float(np.std(accuracies, ddof=1)) if len(found) > 1 else None,
        "ms-per-round": over_seeds("ms-per-round"),
    }


_TITLE = (
    "Accuracy in %: mean ± sd and 10th percentile over all clients, personalized;\n"
    "before personalizing; of the models that clients keep; ± over seeds"
)


def report_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Returns the figures as a table; accuracies in percent."""
    table = Table(title=_TITLE, title_justify="left")
    table.add_column("algorithm", no_wrap=True)
    headings = ("personalized ± sd", "p10", "before", "own", "± seeds", "ms/round")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["algorithm"],
            f"{_percent(row['accuracy'])} ± {_percent(row['accuracy-std'])}",
            _percent(row["accuracy-p10"]),
            _percent(row["accuracy-before"]),
            _percent(row["accuracy-own"]),
            _percent(row["accuracy-seed-std"]),
            f"{row['ms-per-round']:.1f}",
        )
    return table


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"
