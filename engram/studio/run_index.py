"""The runs of a folder, read again only when they have changed."""

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from engram.compare.comparison_folder import PLAN, SEARCHED, Runs, runs_of
from engram.runs.run import PROGRESS, Run
from engram.runs.run_list import Entry, entry_of
from engram.settings.errors import Refused, one_line

_PARTS: Final = ("config.json", "metrics.jsonl", "results.json", PROGRESS, PLAN, SEARCHED)
_APART: Final = frozenset({"seed", "resume", "method", "dataset"})  # shown in columns of their own
_KEPT: Final = 256  # runs whose files are kept in memory

Stamp = tuple[Any, ...]


class RunIndex:
    """The runs, comparisons and searches of a folder, and the runs of its comparisons.

    Raises:
        Refused: If there is no such folder.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise Refused(f"FOLDER must be a folder of runs, got {folder}: there is none")
        self.folder = folder
        self._known: dict[str, tuple[Stamp, Entry]] = {}
        self._opened: dict[str, Run] = {}

    def everything(self) -> list[Entry]:
        """Returns all that is there, the newest first, with runs of comparisons and settings.

        The name of an entry is its path in this folder, such as ``demo/fedavg-seed0``.
        """
        found = []
        for name in sorted(os.listdir(self.folder)):
            one = self._look(name) if os.path.isdir(self.folder / name) else None
            if one is not None:
                found.append(one)
                found += self._inside(one)
        known = self._known
        self._known = {one.name: known[one.name] for one in found if one.name in known}
        return sorted(found, key=lambda one: one.begun, reverse=True)

    def _inside(self, one: Entry) -> list[Entry]:
        if one.kind != "comparison":
            return []
        with contextlib.suppress(Refused):
            names = [f"{one.name}/{run.name}" for run in runs_of(self.folder / one.name)]
            return [run for name in names if (run := self._look(name)) is not None]
        return []

    def _look(self, name: str) -> Entry | None:
        stamp = self.stamp(name)
        if name in self._known and self._known[name][0] == stamp:
            return self._known[name][1]
        if (entry := entry_of(self.folder / name)) is None:
            return None
        entry = entry._replace(name=name)
        if entry.kind == "run":
            with contextlib.suppress(Refused):
                entry = entry._replace(settings=self.record(name).settings)
        self._known[name] = stamp, entry
        return entry

    def stamp(self, name: str) -> Stamp:
        """Returns a stamp that changes with any file of the folder."""
        path, found = self.folder / name, []
        for part in _PARTS:
            with contextlib.suppress(OSError):
                now = (path / part).stat()
                found.append((part, now.st_mtime_ns, now.st_size))
        if found and not os.path.exists(path / "results.json"):
            found.append((Run(path).state, 0, 0))
        return tuple(found)

    def stamps_around(self, name: str) -> list[Stamp]:
        """Returns the stamps of a folder, and of the runs of the comparison that it is, or is of.

        Raises:
            Refused: If there is no such folder.
        """
        path = self.path(name)
        names = [name]
        for folder in (path, path.parent):
            if (folder / PLAN).is_file():
                below = folder.relative_to(self.folder)
                names += [f"{below}/{run.name}" for run in runs_of(folder)]
        return [self.stamp(one) for one in dict.fromkeys(names)]

    # --- One of them -------------------------------------------------------------------------

    def path(self, name: str) -> Path:
        """Returns the folder of a name that a page was asked for.

        Raises:
            Refused: If it is none in this folder.
        """
        path, parts = self.folder / name, name.split("/")
        inside = os.path.isdir(path) and path.resolve() == self.folder.resolve() / name
        if {"", ".", ".."} & {*parts} or not inside:  # a link may lead anywhere
            raise Refused(f"there is no {one_line(name)} in {self.folder}")
        return path

    def record(self, name: str) -> Run:
        """Returns a run's record.

        Raises:
            Refused: If there is no such run.
        """
        path = self.path(name)
        if name not in self._opened:
            while len(self._opened) >= _KEPT:
                self._opened.pop(next(iter(self._opened)), None)
            self._opened[name] = Run.open(path)
        return self._opened[name]

    def runs(self, names: Iterable[str]) -> Runs:
        """Returns runs by method, and by the settings that differ between those of a method.

        Runs that have not been evaluated yet are left out.

        Raises:
            Refused: If one of them is not there.
        """
        records = [record for name in names if (record := self.record(name)).is_evaluated]
        settings = [record.settings for record in records]
        apart = {
            method: differing(own for own in settings if own["method"] == method)
            for method in {own["method"] for own in settings}
        }
        found: Runs = {}
        for record, own in zip(records, settings, strict=True):
            special = [f"{key}={own.get(key)}" for key in apart[own["method"]]]
            found.setdefault(" ".join([own["method"], *special]), []).append(record)
        for label, same in found.items():
            found[label] = sorted(same, key=lambda record: record.settings["seed"])
        return found

    def around(self, name: str) -> Runs:
        """Returns the runs of the comparison that a run belongs to; itself alone if to none."""
        parent = self.path(name).parent
        if (parent / PLAN).is_file():
            below = parent.relative_to(self.folder)
            return self.runs(f"{below}/{run.name}" for run in runs_of(parent, "metrics.jsonl"))
        return self.runs([name])


def differing(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the settings that differ among runs that have them, without the seed."""
    values: dict[str, set[str]] = {}
    for own in settings:
        for key, value in own.items():
            values.setdefault(key, set()).add(str(value))
    return [key for key, found in values.items() if len(found) > 1 and key not in _APART]
