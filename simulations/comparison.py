"""The folder of a comparison: which runs it is made of."""

import json
from pathlib import Path
from typing import Any, Final

from federation.errors import Refused
from server.record import RunRecord

Runs = dict[str, list[RunRecord]]  # by method, one record a seed
PLAN: Final = "comparison.json"  # in a comparison's folder: each run's name and settings


def read_plan(folder: Path) -> dict[str, Any]:
    """Returns what a comparison is made of: its ``engine``, and the settings of its ``runs``.

    Raises:
        Refused: The folder is not that of a comparison, or the file is damaged.
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
    """Returns the runs in a folder: the run that it is, or those of the comparison that it is.

    Raises:
        Refused: It is neither.
    """
    parts = [folder]
    if (folder / PLAN).is_file():
        named = [folder / name for name in read_plan(folder)["runs"]]
        parts = [part for part in named if (part / "metrics.jsonl").is_file()]
    runs: Runs = {}
    for part in parts:
        record = RunRecord.open(part)
        if not any(record.metrics[0].name in row for row in record.rows()):
            continue  # it has only just begun
        runs.setdefault(record.config["settings"]["method"], []).append(record)
    return runs
