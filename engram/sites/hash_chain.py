"""Files of lines that are only added, each with the hash of the one before.

A line is a JSON object. ``before`` is the SHA-256 of the line before, so that no line can be
changed, taken out or put in between unseen; ``line`` counts them. A file of some size is closed and
named for its last line, where there is a bound; the chain goes on in the next.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from logging import getLogger
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from engram.settings.files import parse_json, read_file, refusing, sync

_log = getLogger("flwr.engram")

Fields = Mapping[str, Any]

NOTHING: Final = "0" * 64  # stands before the first line

_TAIL: Final = 2**16  # bytes that hold the last line, whose texts are bounded


class Chained(NamedTuple):
    """A chain as it is on the disk."""

    lines: list[dict[str, Any]]  # its lines, the oldest first; empty where one is damaged
    fault: str  # the first place at which the chain is broken; "" if it is whole
    last: str  # hash of the last line


class Chain:
    """A chain of lines in a folder, to which several processes add.

    Args:
        folder: Made with the first line.
        name: The file's name without its suffix, in which new lines are.
        largest: Bytes at which a file is closed; 0 for never.
        closed: Closed files that are kept, the newest ones.
    """

    def __init__(self, folder: Path, name: str, *, largest: int = 0, closed: int = 0) -> None:
        self.folder, self.name = folder, name
        self.file = folder / f"{name}.jsonl"
        self._largest, self._closed = largest, closed

    def last(self) -> dict[str, Any]:
        """Returns the last whole line; empty if there is none.

        Raises:
            OSError: It cannot be read.
        """
        return _parsed(self._last())[0]

    def extend(
        self, follow: Callable[[Fields, str], Fields | None]
    ) -> list[tuple[dict[str, Any], str]]:
        """Adds a line, within ``alone``, and waits until it is on the disk.

        A line that a crash has cut off is removed first, which is noted in a line of its own.

        Args:
            follow: ``(last, lost) -> fields``: the line that comes after the last one, or None for
                no line. Where something was removed, it is first called for the line about that,
                with ``lost`` in words, which is empty otherwise.

        Returns:
            The lines that were added, and their hashes.

        Raises:
            OSError: It cannot be written.
        """
        added, lost = [], self._heal()
        if lost:
            why = f"{lost} bytes of a line that was cut off, as by a crash, are removed"
            _log.warning("%s: %s", self.file, why)
            added.append(self._add(lambda last: follow(last, why)))
        added.append(self._add(lambda last: follow(last, "")))
        return [one for one in added if one is not None]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Waits until no other process adds lines, and keeps others from it."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def read(self) -> Chained:
        """Reads and checks the chain; it is empty if there is none.

        Raises:
            Refused: A file of it cannot be read.
        """
        lines, last, number, before = list[dict[str, Any]](), NOTHING, 0, self.file
        suspects = dict[int, Path]()  # lines of which the first fault is, and their files
        for path in filter(Path.exists, (*self._older(), self.file)):
            for raw in _lines(path):
                line, hashed = _parsed(raw)
                counts = line.get("line") == number + 1
                follows = counts and line.get("before") == last
                if follows and [*suspects][1:] == [number]:  # it is as it was: that before is not
                    del suspects[number]
                # Of the first line of a closed file, the one before may have been removed.
                begins = not lines and path != self.file and "line" in line
                if not (follows or begins or suspects):
                    suspects = {number: before} if counts and number else {}
                    suspects[number + 1] = path
                number, last, before = line.get("line", number + 1), hashed, path
                lines.append(line)
        if not suspects:
            return Chained(lines, "", last)
        told = f"line {' or '.join(map(str, suspects))} of the {self.name} is not what was written"
        return Chained(lines, f"{told}: see {next(iter(suspects.values()))}", last)

    # --- Files ---------------------------------------------------------------------------------

    def _older(self) -> list[Path]:
        return sorted(self.folder.glob(f"{self.name}-*.jsonl")) if self._largest else []

    def _newest(self) -> Iterator[Path]:
        yield self.file
        yield from reversed(self._older())  # looked for only where that has no line yet

    def _last(self) -> bytes:
        for path in self._newest():
            with suppress(FileNotFoundError), path.open("rb") as file:
                if found := _whole(_end_of(file))[:-1].rpartition(b"\n")[2]:
                    return found
        return b""

    def _heal(self) -> int:
        """Removes bytes after the last whole line of the file; returns their number."""
        with suppress(FileNotFoundError), self.file.open("rb+") as file:
            end = _end_of(file)
            if lost := len(end) - len(_whole(end)):
                file.truncate(file.seek(0, os.SEEK_END) - lost)
                os.fsync(file.fileno())
            return lost
        return 0

    def _add(self, follow: Callable[[Fields], Fields | None]) -> tuple[dict[str, Any], str] | None:
        last, hashed = _parsed(self._last())
        fields = follow(last)
        if fields is None:
            return None
        path = self.file
        if self._largest and path.exists() and path.stat().st_size >= self._largest:
            path.rename(self.folder / f"{self.name}-{last.get('line', 0):012d}.jsonl")
            for old in self._older()[: -self._closed]:
                old.unlink()
        told = {"line": last.get("line", 0) + 1, "before": hashed, **fields}
        raw, new = json.dumps(told, ensure_ascii=False).encode(), not path.exists()
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "ab") as file:
            file.write(raw + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync(self.folder)
        return told, hashlib.sha256(raw).hexdigest()


def _end_of(file: BinaryIO) -> bytes:
    file.seek(-min(_TAIL, file.seek(0, os.SEEK_END)), os.SEEK_END)
    return file.read()


def _whole(end: bytes) -> bytes:
    return end[: end.rfind(b"\n") + 1]


def _lines(path: Path) -> Iterator[bytes]:
    with refusing(f"{path} cannot be read"):
        data = read_file(path, links=False)
    yield from _whole(data).split(b"\n")[:-1]


def _parsed(raw: bytes) -> tuple[dict[str, Any], str]:
    """Returns a line, empty if it is damaged, and its hash."""
    if not raw:
        return {}, NOTHING
    try:
        found = parse_json(raw)
    except ValueError:
        found = {}
    line = found if isinstance(found, dict) and isinstance(found.get("line"), int) else {}
    return line, hashlib.sha256(raw).hexdigest()
