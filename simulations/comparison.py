"""What a comparison consists of: its methods, and the runs in its folder."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from federation.errors import Refused
from federation.experiment import Experiment
from federation.files import replace_file
from federation.methods import METHODS, family
from federation.methods.base import Method
from federation.methods.local import LocalMethod
from server.record import RunRecord
from simulations.options import make_folder, read_experiment
from simulations.several import check_trained

if TYPE_CHECKING:
    from client.hosts import Engine

Runs = dict[str, list[RunRecord]]
"""One record per seed, by label: a method's name, and after a comma what else tells it apart."""

SEARCHED: Final = "tuning.json"  # the file of a folder of searches: what is searched
STUDY: Final = "plan.json"  # the file of a folder of engram reproduce: which study, and how
TUNING: Final = "tuning"  # the folder of the search in that of a comparison
PLAN: Final = "comparison.json"  # a comparison's file: the engine, and each run's settings by name


def contestants(methods: Sequence[str]) -> list[str]:
    """Returns whom a comparison runs: references that every one has, and the methods asked for.

    Args:
        methods: Their names; if there are none, those that are compared by default.

    Raises:
        Refused: One of them trains no network.
    """
    check_trained("compare", methods)
    chosen = list(methods) or family(LocalMethod.plug_in, compared=True)
    trained = family(LocalMethod.plug_in)
    references = [name for name in trained if getattr(METHODS[name], "reference", False)]
    return [*(name for name in references if name not in chosen), *chosen]


def planned(given: Mapping[str, Mapping[str, Any]], seeds: int) -> dict[str, Experiment]:
    """Returns the experiments of a comparison, by the names of their folders.

    Args:
        given: Each method's settings.
        seeds: Runs of each, from the setting ``seed`` upwards.
    """
    plan = {}
    for name, own in given.items():
        first = read_experiment(own)
        for seed in range(first.seed, first.seed + seeds):
            plan[f"{name}-seed{seed}"] = first.model_copy(update={"seed": seed})
    return plan


def record_plan(folder: Path, engine: "Engine", plan: Mapping[str, Experiment]) -> None:
    """Writes what a comparison consists of into its folder, from which ``read_plan`` reads it."""
    make_folder(folder)
    settings = {name: experiment.to_config() for name, experiment in plan.items()}
    plan_file = json.dumps({"engine": engine, "runs": settings}, indent=2)
    replace_file(folder / PLAN, plan_file.encode())


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


def trains_network(record: RunRecord) -> bool:
    """Returns whether a run is of a method that trains networks."""
    return issubclass(METHODS[record.config["settings"]["method"]], LocalMethod)


def is_evaluated(record: RunRecord) -> bool:
    """Returns whether a round of a run has its main metric; of a method without one, none has."""
    return any(metric.name in row for metric in record.metrics[:1] for row in record.rows())


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
        if is_evaluated(record):
            runs.setdefault(record.config["settings"]["method"], []).append(record)
    return runs
