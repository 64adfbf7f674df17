"""The runs of a folder, read again only when they have changed."""

import contextlib
import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from engram.compare.comparison_folder import PLAN, SEARCHED, Runs, runs_of
from engram.runs.progress import PROGRESS
from engram.runs.record import RunRecord
from engram.runs.run_list import Entry, entry_of
from engram.settings.errors import Refused, one_line
from engram.wire.checksums import Row

_PARTS: Final = ("config.json", "metrics.jsonl", "results.json", PROGRESS, PLAN, SEARCHED)
_APART: Final = frozenset({"seed", "resume", "method", "dataset"})  # shown in columns of their own
_KEPT: Final = 256  # runs whose files are kept in memory

Stamp = tuple[Any, ...]


class IndexedFolder(NamedTuple):
    """Contents of one folder.

    Attributes:
        name: The folder, below the index's, such as ``demo/fedavg-seed0``.
        entry: What it is.
        settings: A run's settings; empty of others.
        stamp: Differs when its files have changed.
    """

    name: str
    entry: Entry
    settings: Mapping[str, Any]
    stamp: Stamp


class _Snapshot(RunRecord):
    """A run that reads each of its files once."""

    @cached_property
    def config(self) -> dict[str, Any]:
        return super().config

    @cached_property
    def results(self) -> dict[str, Any] | None:
        return super().results

    @cached_property
    def _rows(self) -> list[Row]:
        return super().rows()

    def rows(self) -> list[Row]:
        return self._rows

    @cached_property
    def _client_scores(self) -> list[Row]:
        return super().scores()

    def scores(self) -> list[Row]:
        return self._client_scores


class RunIndex:
    """The runs, comparisons and searches of a folder, and the runs of its comparisons.

    Raises:
        Refused: If there is no such folder.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise Refused(f"FOLDER must be a folder of runs, got {folder}: there is none")
        self.folder = folder
        self._known: dict[str, IndexedFolder] = {}
        self._read: dict[str, tuple[Stamp, _Snapshot]] = {}

    def everything(self) -> list[IndexedFolder]:
        """Returns all that is there, the newest first; a comparison before its runs."""
        found = []
        for name in sorted(os.listdir(self.folder)):
            one = self._look(name) if os.path.isdir(self.folder / name) else None
            if one is not None:
                found.append(one)
                found += self._inside(one)
        self._known = {one.name: one for one in found}
        return sorted(found, key=lambda one: one.entry.begun, reverse=True)

    def _inside(self, one: IndexedFolder) -> list[IndexedFolder]:
        if one.entry.kind != "comparison":
            return []
        with contextlib.suppress(Refused):
            names = [f"{one.name}/{run.name}" for run in runs_of(self.folder / one.name)]
            return [run for name in names if (run := self._look(name)) is not None]
        return []

    def _look(self, name: str) -> IndexedFolder | None:
        stamp = self.stamp(name)
        known = self._known.get(name)
        if known is not None and known.stamp == stamp:
            return known
        path = self.folder / name
        entry = entry_of(path)
        if entry is None:
            return None
        settings: Mapping[str, Any] = {}
        if entry.kind == "run" and not path.is_symlink():
            with contextlib.suppress(Refused):
                settings = RunRecord.open(path).config["settings"]
        return IndexedFolder(name, entry, settings, stamp)

    def stamp(self, name: str) -> Stamp:
        """Returns a stamp that changes with any file of the folder."""
        path, found = self.folder / name, []
        for part in _PARTS:
            with contextlib.suppress(OSError):
                now = (path / part).stat()
                found.append((part, now.st_mtime_ns, now.st_size))
        if found and not os.path.exists(path / "results.json"):
            found.append((RunRecord(path).state, 0, 0))
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

    def record(self, name: str) -> RunRecord:
        """Returns a run's record, as it is now; it does not change afterwards.

        Raises:
            Refused: If there is no such run.
        """
        path, stamp = self.path(name), self.stamp(name)
        if name not in self._read or self._read[name][0] != stamp:
            while len(self._read) >= _KEPT:
                self._read.pop(next(iter(self._read)), None)
            self._read[name] = stamp, _Snapshot.open(path)
        return self._read[name][1]

    def runs(self, names: Iterable[str]) -> Runs:
        """Returns runs by method, and by the settings that differ between those of a method.

        Runs that have not been evaluated yet are left out.

        Raises:
            Refused: If one of them is not there.
        """
        records = [record for name in names if (record := self.record(name)).is_evaluated]
        settings = [record.config["settings"] for record in records]
        apart = {
            method: differing(own for own in settings if own["method"] == method)
            for method in {own["method"] for own in settings}
        }
        found: Runs = {}
        for record, own in zip(records, settings, strict=True):
            special = [f"{key}={own.get(key)}" for key in apart[own["method"]]]
            found.setdefault(" ".join([own["method"], *special]), []).append(record)
        for label, same in found.items():
            found[label] = sorted(same, key=lambda record: record.config["settings"]["seed"])
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
