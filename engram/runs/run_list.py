"""Entries of a folder of runs: runs, comparisons, searches and studies."""

import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from engram.compare.comparison_folder import (
    BENCHMARK,
    PLAN,
    SEARCHED,
    STUDY,
    read_benchmark,
    read_plan,
    read_search,
    read_study,
    runs_of,
)
from engram.data.file_models import readable
from engram.data.source import Source
from engram.runs.run import Run
from engram.settings.base import SharedSettings
from engram.settings.errors import Refused, few_names, one_line


class Entry(NamedTuple):
    """A folder of a run, a comparison, a search or a study.

    Attributes:
        name: The folder's.
        kind: What it is of.
        about: Its methods; a study's name.
        data: Its data sets.
        state: ``finished``, how far it is, or what is wrong with it.
        score: The main metric of a finished run, of the models that clients are served by, in
            words; "" if there is none.
        begun: When it began.
        settings: A run's settings, where they are wanted.
    """

    name: str
    kind: str
    about: str
    data: str
    state: str
    score: str
    begun: str
    settings: Mapping[str, Any] = MappingProxyType({})


def entries(folder: Path) -> list[Entry]:
    """Returns the entries of a folder, the newest first; anything else is passed over.

    Raises:
        Refused: If there is no such folder.
    """
    if not folder.is_dir():
        raise Refused(f"FOLDER must be a folder of runs, got {folder}: there is none")
    found = [entry for path in folder.iterdir() if (entry := entry_of(path)) is not None]
    return sorted(found, key=lambda entry: (entry.begun, entry.name), reverse=True)


def kind_of(path: Path) -> str | None:
    """Returns the kind of a folder, by its file; None if it is nothing that Engram makes."""
    return next((kind for kind, (name, _) in _KINDS.items() if os.path.lexists(path / name)), None)


def entry_of(path: Path) -> Entry | None:
    """Returns the entry of a folder; None if it is nothing that Engram makes.

    What is damaged says so in its state. A link is not followed: it may lead anywhere.
    """
    if (kind := kind_of(path)) is None:
        return None
    name, told_of = _KINDS[kind]
    try:
        begun = datetime.fromtimestamp((path / name).lstat().st_mtime)
        with readable(path):
            if path.is_symlink():
                raise Refused("a link, which is not followed")
            told = told_of(path)
    except (OSError, OverflowError):
        return None  # it has just been removed; or its time is none
    except Refused as error:
        told = ("", "", one_line(str(error)), "")
    return Entry(path.name, kind, *told, f"{begun:%Y-%m-%d %H:%M:%S}")


_Told = tuple[str, str, str, str]  # an entry's ``about``, ``data``, ``state`` and ``score``


def _run(path: Path) -> _Told:
    record = Run.open(path)
    about = record.method.name, one_line(data_of(record))
    results = record.results
    if results is None:
        return *about, f"{record.state}, {record.done} rounds are done", ""
    score = ""
    for main in record.metrics[:1]:  # a method may have none
        value = results.get(main.name)
        if value is not None:
            score = f"{main.name} {main.with_unit(value, 1)}"
    return *about, "finished", score


def data_of(record: Run) -> str:
    """Returns a run's data set in words: on nodes, the clients' own where they have some."""
    if own := record.on_nodes and record.first_row.get("own-data"):
        return f"own data of {own} clients"
    return Source(record.settings["dataset"]).described


def _comparison(path: Path) -> _Told:
    runs, done = read_plan(path)["runs"], len(runs_of(path, "results.json"))
    methods = (settings["method"] for settings in runs.values())
    state = "finished" if done == len(runs) else f"{done} of {len(runs)} runs are done"
    return _several(methods), _datasets(runs), state, ""


def _search(path: Path) -> _Told:
    fixed = read_search(path)["fixed"]
    known = sum((path / name / "best.toml").is_file() for name in fixed)
    finished = (path / "best.toml").is_file()  # which is written last
    state = (
        "finished" if finished else f"not finished, {known} of {len(fixed)} methods have settings"
    )
    return _several(fixed), _datasets(fixed), state, ""


def _study(path: Path) -> _Told:
    state = "finished" if (path / "results.json").is_file() else "not finished"
    return one_line(read_study(path)), "", state, ""


def _benchmark(path: Path) -> _Told:
    federations = read_benchmark(path)
    finished = (path / "scores.csv").is_file()  # which is written last
    return "", _several(federations), "finished" if finished else "not finished", ""


_KINDS: Final = {
    "benchmark": (BENCHMARK, _benchmark),
    "run": ("config.json", _run),
    "comparison": (PLAN, _comparison),
    "search": (SEARCHED, _search),
    "study": (STUDY, _study),
}
"""Kinds of entries: the file that tells each, and its reader."""


def _datasets(runs: Mapping[str, Mapping[str, Any]]) -> str:
    default = SharedSettings.model_fields["dataset"].default
    return _several(Source(own.get("dataset", default)).described for own in runs.values())


def _several(names: Iterable[str]) -> str:
    return few_names(dict.fromkeys(names))
