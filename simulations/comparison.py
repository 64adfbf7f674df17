"""What a comparison consists of: its methods, and the runs in its folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from federation.errors import Refused
from federation.methods import METHODS, family
from federation.methods.base import Method
from federation.methods.local import LocalMethod
from server.record import RunRecord
from simulations.several import trained_methods

Runs = dict[str, list[RunRecord]]
"""One record per seed, by label: a method's name, and after a comma what else tells it apart."""

SEARCHED: Final = "tuning.json"  # the file of a folder of searches: what is searched
TUNING: Final = "tuning"  # the folder of the search in that of a comparison
PLAN: Final = "comparison.json"  # a comparison's file: the engine, and each run's settings by name


def contestants(methods: Sequence[str]) -> list[str]:
    """Returns whom a comparison runs: references that every one has, and the methods asked for.

    Args:
        methods: Their names; if there are none, those that are compared by default.

    Raises:
        Refused: One of them trains no network.
    """
    trained = trained_methods("compare", methods)
    chosen = list(methods) or family(LocalMethod.plug_in, compared=True)
    references = [name for name in trained if getattr(METHODS[name], "reference", False)]
    return [*(name for name in references if name not in chosen), *chosen]


def method_of(label: str) -> type[Method]:
    """Returns the method of a label of ``Runs``."""
    return METHODS[label.partition(",")[0]]


def read_plan(folder: Path) -> dict[str, Any]:
    """Returns a comparison's ``engine``, and the settings of its ``runs`` by name.

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
    """Returns the runs in the folder of a run or of a comparison.

    Raises:
        Refused: If the folder is neither.
    """
    parts = [folder]
    if (folder / PLAN).is_file():
        named = [folder / name for name in read_plan(folder)["runs"]]
        parts = [part for part in named if (part / "metrics.jsonl").is_file()]
    runs: Runs = {}
    for part in parts:
        record = RunRecord.open(part)
        if not any(record.metrics[0].name in row for row in record.rows()):
            continue  # not evaluated yet
        runs.setdefault(record.config["settings"]["method"], []).append(record)
    return runs
