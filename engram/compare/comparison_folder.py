"""Comparisons: their methods, and the runs in their folders."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from engram.arguments import REFERENCES, read_experiment
from engram.compare.settings_for_methods import check_trained
from engram.data.file_models import Name, Seed, Settings, Stored, read_stored
from engram.runs.run import Run
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.settings.families import METHODS, family
from engram.settings.fields import Scalar
from engram.settings.network import NetworkMethod

Runs = dict[str, list[Run]]
"""One record per seed, by label: a method's name, and after a space settings that differ."""

SEARCHED: Final = "tuning.json"  # the file of a folder of searches: what is searched
STUDY: Final = "plan.json"  # the file of a folder of engram reproduce: which study, and how
TUNING: Final = "tuning"  # the folder of the search in that of a comparison
BENCHMARK: Final = "benchmark.json"  # the file of a benchmark's folder: its federations
PLAN: Final = "comparison.json"  # a comparison's file: the engine, and each run's settings by name


def contestants(methods: Sequence[str]) -> list[str]:
    """Names the methods of a comparison: the baselines, then those asked for.

    Args:
        methods: Their names; if there are none, those that are compared by default.

    Raises:
        Refused: One of them trains no network.
    """
    check_trained("compare", methods)
    chosen = list(methods) or family(NetworkMethod.plug_in, compared=True)
    trained = family(NetworkMethod.plug_in)
    return [*(name for name in trained if is_reference(name) and name not in chosen), *chosen]


def planned(given: Mapping[str, Mapping[str, Any]], seeds: int) -> dict[str, Experiment]:
    """Returns the experiments of a comparison, by the names of their folders."""
    plan = {}
    for name, own in given.items():
        first = read_experiment(own)
        for seed in range(first.seed, first.seed + seeds):
            plan[f"{name}-seed{seed}"] = first.model_copy(update={"seed": seed})
    return plan


def is_reference(label: str) -> bool:
    """Whether the method of a label of ``Runs`` is one that every comparison has."""
    return getattr(METHODS[label.partition(" ")[0]], "reference", False)


class _Plan(Stored):
    engine: str
    references: list[str] = Field(default_factory=list)
    runs: dict[Name, Settings]


def read_plan(folder: Path) -> dict[str, Any]:
    """Returns a comparison's ``engine``, ``references``, and settings of its ``runs`` by name.

    Raises:
        Refused: If the folder is not that of a comparison, or the file is damaged.
    """
    return {"references": [*REFERENCES], **_read(folder / PLAN, "comparison", _Plan)}


def _read(path: Path, kind: str, stored: type[Stored]) -> dict[str, Any]:
    if not path.is_file():
        raise Refused(f"{path.parent} is not the folder of a {kind}: it has no {path.name}")
    return read_stored(path, stored)


def runs_of(folder: Path, having: str = "config.json") -> list[Path]:
    """Returns the folders of a comparison's runs that have a file; links are none of its runs.

    Raises:
        Refused: As ``read_plan``.
    """
    named = [folder / name for name in read_plan(folder)["runs"]]
    return [run for run in named if (run / having).is_file() and not run.is_symlink()]


class _Search(Stored, extra="forbid"):
    fixed: Annotated[dict[Name, dict[str, Scalar]], Field(min_length=1)]
    asked: list[str]
    trials: Annotated[int, Field(ge=1)]
    seeds: Annotated[list[Seed], Field(min_length=1)]
    minutes: float | None = None


def read_search(folder: Path) -> dict[str, Any]:
    """Returns the plan of a folder of searches, as ``Tuning`` has it.

    Raises:
        Refused: If the folder has none, or the file is damaged.
    """
    return _read(folder / SEARCHED, "search", _Search)


class _Study(Stored):
    experiment: str


def read_study(folder: Path) -> str:
    """Returns the name of the study that a folder is of.

    Raises:
        Refused: If its file is damaged.
    """
    return str(read_stored(folder / STUDY, _Study)["experiment"])


class _Benchmark(Stored):
    federations: Annotated[dict[Name, str], Field(min_length=1)]
    published: dict[Name, dict[str, str]] = Field(default_factory=dict)


def read_benchmark(folder: Path) -> dict[str, str]:
    """Reads the descriptions of a benchmark's federations, by folder.

    Raises:
        Refused: If the folder is not that of a benchmark, or its file is damaged.
    """
    return dict(_read(folder / BENCHMARK, "benchmark", _Benchmark)["federations"])


def read_published(folder: Path) -> dict[str, dict[str, str]]:
    """Reads a benchmark's published accuracies, in %, by published federation and method.

    Raises:
        Refused: As ``read_benchmark``.
    """
    return dict(_read(folder / BENCHMARK, "benchmark", _Benchmark).get("published", {}))


def find_runs(folder: Path) -> Runs:
    """Returns the runs in the folder of a run or of a comparison.

    Raises:
        Refused: If the folder is neither.
    """
    parts = [folder]
    if (folder / PLAN).is_file():
        parts = runs_of(folder, "metrics.jsonl")
    runs: Runs = {}
    for part in parts:
        record = Run.open(part)
        if record.is_evaluated:
            runs.setdefault(record.method.name, []).append(record)
    return runs
