"""JSON objects with a checksum among their entries, by which damage on disk is found."""

import json
import zlib
from collections.abc import Mapping
from typing import Any, Final

from federation.files import parse_json

Row = dict[str, Any]

_SUM: Final = "crc32"  # key of the checksum of an object's other entries


def summed(contents: Mapping[str, Any]) -> Row:
    """Returns an object with its checksum."""
    return {**contents, _SUM: _checksum(contents)}


def checked(contents: Row) -> Row | None:
    """Returns an object without its checksum; None if that is missing or wrong."""
    rest = {key: value for key, value in contents.items() if key != _SUM}
    return rest if contents.get(_SUM) == _checksum(rest) else None


def _checksum(contents: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(contents).encode()):08x}"


def read_row(line: bytes) -> Row | None:
    """Parses a line of metrics; returns None if it is damaged."""
    try:
        row = parse_json(line)
    except ValueError:
        return None
    return checked(row) if isinstance(row, dict) else None
