"""A node's log of rounds for its site: lines that are only added, each with the hash of the last.

A line is a JSON object. ``before`` is the SHA-256 of the line before, so that no line can be
changed, taken out or put in between unseen; ``line`` counts them, and ``today`` counts the rounds
of training of the line's day. At ``_LARGEST`` bytes a file is closed and named for its last line;
the chain goes on in the next. Of closed files the newest ``_CLOSED`` are kept.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from logging import getLogger
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from federation.clock import now
from federation.errors import Refused
from federation.files import parse_json, read_file, sync

__all__ = ["ANSWERS", "AUDIT", "ENDED", "Audit", "Audited"]

AUDIT: Final = "log"
"""The log's folder in a node's state."""

ANSWERS: Final = ("approved", "refused")
"""Kinds of lines about the site's answers to requests for approval."""

ENDED: Final = "ended"
"""Kind of a line about work that did not come to its end."""

_log = getLogger("flwr.engram")

_NAME: Final = "log.jsonl"  # closed files are log-LINE.jsonl
_LARGEST: Final = 2**22  # bytes of a file
_CLOSED: Final = 7  # closed files
_TAIL: Final = 2**16  # bytes that hold the last line, whose texts are bounded
_NOTHING: Final = "0" * 64  # stands before the first line
_ASIDE: Final = ("line", "before", "time", "today")


class Audited(NamedTuple):
    """The log of a node.

    Attributes:
        lines: Its lines, the oldest first, as they are on the disk.
        fault: The first place at which the chain is broken; "" if it is whole.
        last: Hash of the last line.
    """

    lines: list[dict[str, Any]]
    fault: str
    last: str


class Audit:
    """The log in a folder, to which processes of a node add lines.

    Args:
        folder: Made with the first line.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rounds(self, at: datetime) -> int:
        """Returns the number of rounds of training in the day of a time.

        A clock that was put back does not make the day's rounds fewer.

        Raises:
            Refused: The log cannot be read.
        """
        try:
            line, _ = _parsed(self._last())
        except OSError as error:
            raise Refused(f"{self.folder} cannot be read: {error.strerror}") from error
        return _today(line, at)

    def append(
        self, fields: Mapping[str, Any], *, trained: bool, at: datetime | None = None
    ) -> None:
        """Adds a line, and waits until it is on the disk.

        A line that a crash has cut off is removed first, which is noted in a line of its own. A
        refusal that is the last line already is not repeated.

        Args:
            fields: The line.
            trained: Whether it is of a round that counts in ``rounds``.
            at: The time; by default now.

        Raises:
            OSError: It cannot be written.
        """
        at = at or now()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lost = self._heal()
            if lost:
                why = f"{lost} bytes of a line that was cut off, as by a crash, are removed"
                _log.warning("%s: %s", self.folder / _NAME, why)
                self._add({"kind": "healed", "why": why}, trained=False, at=at)
            self._add(fields, trained=trained, at=at)

    def read(self) -> Audited:
        """Reads and checks the log; it is empty if there is none.

        Raises:
            Refused: A file of it cannot be read.
        """
        lines, fault, last, number = list[dict[str, Any]](), "", _NOTHING, 0
        for path in self._files():
            for raw in _lines(path):
                line, hashed = _parsed(raw)
                follows = line.get("before") == last and line.get("line") == number + 1
                # Of the first line of a closed file, the one before may have been removed.
                begins = not lines and path.name != _NAME and "line" in line
                if not (follows or begins or fault):
                    fault = f"line {number + 1} of the log is not what was written: see {path}"
                number, last = line.get("line", number + 1), hashed
                lines.append(line)
        return Audited(lines, fault, last)

    # --- Files ---------------------------------------------------------------------------------

    def _closed(self) -> list[Path]:
        return sorted(self.folder.glob("log-*.jsonl"))

    def _files(self) -> list[Path]:
        return [path for path in (*self._closed(), self.folder / _NAME) if path.exists()]

    def _last(self) -> bytes:
        """Returns the last whole line; b"" if there is none."""
        for path in reversed(self._files()):
            with path.open("rb") as file:
                if found := _whole(_end_of(file))[:-1].rpartition(b"\n")[2]:
                    return found
        return b""

    def _heal(self) -> int:
        """Removes what follows the last whole line of the file; returns how many bytes."""
        path = self.folder / _NAME
        if not path.exists():
            return 0
        with path.open("rb+") as file:
            end = _end_of(file)
            lost = len(end) - len(_whole(end))
            if lost:
                file.truncate(file.seek(0, os.SEEK_END) - lost)
                os.fsync(file.fileno())
        return lost

    def _add(self, fields: Mapping[str, Any], *, trained: bool, at: datetime) -> None:
        last, hashed = _parsed(self._last())
        same = {key: value for key, value in last.items() if key not in _ASIDE}
        if "why" in fields and not trained and same == {**fields}:
            return
        told = {
            "line": last.get("line", 0) + 1,
            "before": hashed,
            "time": at.isoformat(timespec="seconds").replace("+00:00", "Z"),
            "today": _today(last, at) + trained,
        }
        path = self.folder / _NAME
        if path.exists() and path.stat().st_size >= _LARGEST:
            path.rename(self.folder / f"log-{last.get('line', 0):012d}.jsonl")
            for old in self._closed()[:-_CLOSED]:
                old.unlink()
        new = not path.exists()
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "ab") as file:
            file.write(json.dumps(told | dict(fields), ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync(self.folder)


def _end_of(file: BinaryIO) -> bytes:
    file.seek(-min(_TAIL, file.seek(0, os.SEEK_END)), os.SEEK_END)
    return file.read()


def _whole(end: bytes) -> bytes:
    """Returns the end of a file up to its last line break."""
    return end[: end.rfind(b"\n") + 1]


def _lines(path: Path) -> Iterator[bytes]:
    try:
        yield from _whole(read_file(path, links=False)).split(b"\n")[:-1]
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error


def _parsed(raw: bytes) -> tuple[dict[str, Any], str]:
    """Returns a line, empty if it is damaged, and its hash."""
    if not raw:
        return {}, _NOTHING
    try:
        found = parse_json(raw)
    except ValueError:
        found = {}
    line = found if isinstance(found, dict) and isinstance(found.get("line"), int) else {}
    return line, hashlib.sha256(raw).hexdigest()


def _today(line: Mapping[str, Any], at: datetime) -> int:
    """Returns the rounds of training of a day, of which this is the last line so far."""
    count = line.get("today")
    day = str(line.get("time", ""))[:10]
    return count if isinstance(count, int) and day >= f"{at:%Y-%m-%d}" else 0
