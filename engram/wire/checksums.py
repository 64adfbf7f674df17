"""JSON objects on disk, and files of them, with checksums by which damage is found."""

import json
import zlib
from collections.abc import Iterable, Mapping
from logging import getLogger
from pathlib import Path
from typing import Any, Final

from engram.data.file_models import Stored, fits
from engram.settings.errors import Refused, few
from engram.settings.files import parse_json, read_file, replace_file, sync

_log = getLogger("flwr.engram")

Row = dict[str, Any]

_SUM: Final = "crc32"  # key of the checksum of an object's other entries
_LARGEST: Final = 2**30  # bytes of a file of rows


def summed(contents: Mapping[str, Any]) -> Row:
    """Returns an object with its checksum."""
    return {**contents, _SUM: _checksum(contents)}


def checked(contents: Row) -> Row | None:
    """Returns an object without its checksum; None if that is missing or wrong."""
    rest = {key: value for key, value in contents.items() if key != _SUM}
    return rest if contents.get(_SUM) == _checksum(rest) else None


def _checksum(contents: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(contents).encode()):08x}"


class Journal:
    """A file of rows, one a line, to which a process appends while others may read it."""

    def __init__(self, path: Path, kind: type[Stored]) -> None:
        self.path = path
        self._kind = kind

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds a row; it is on the disk after ``sync``."""
        self.path.touch(0o600)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(row))

    def sync(self) -> None:
        """Waits until the rows, if there are any, are on the disk."""
        if self.path.exists():
            sync(self.path)

    def rows(self) -> list[Row]:
        """Returns the rows so far; none if there is no file.

        A last line that a crash cut off is left out; so are other damaged lines, with a warning.

        Raises:
            Refused: If they cannot be read.
        """
        if not self.path.exists():
            return []
        try:
            lines = read_file(self.path, most=_LARGEST, links=False).split(b"\n")
        except OSError as error:
            raise Refused(f"{self.path} cannot be read: {error.strerror}") from error
        rows = [self._read(line) for line in lines]
        damaged = [number for number, row in enumerate(rows[:-1], 1) if row is None]
        if damaged:
            _log.warning("%s: lines %s are damaged, and left out", self.path, few(damaged))
        return [row for row in rows if row is not None]

    def _read(self, line: bytes) -> Row | None:
        try:
            row = parse_json(line)
        except ValueError:
            return None
        found = checked(row) if isinstance(row, dict) else None
        return found if found is not None and fits(self._kind, found) else None

    def replace(self, rows: Iterable[Row]) -> None:
        """Replaces all rows at once."""
        replace_file(self.path, "".join(map(_line, rows)).encode())


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(summed(row)) + "\n"
