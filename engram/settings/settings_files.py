"""Reads settings from TOML files, without validating their values."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from engram.core.checks import must
from engram.settings.errors import Refused, one_line
from engram.settings.fields import BY_PATTERN
from engram.settings.files import parse_toml, read_file

_LARGEST: Final = 2**20  # bytes of a file of settings


def read_settings(path: Path) -> dict[str, Any]:
    """Returns a TOML file's settings; those in a table as ``TABLE.key``.

    Raises:
        Refused: The file is missing, is not TOML, or has tables in tables.
    """
    try:
        found = parse_toml(read_file(path, most=_LARGEST))
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # also of huge numbers
        raise Refused(f"{path} is not TOML: {one_line(str(error))}") from error
    return flat(found, str(path))


def flat(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns a table's settings; those of a table in it are called ``TABLE.key``.

    Raises:
        Refused: It has tables in tables; ``where`` names it.
    """
    settings: dict[str, Any] = {}
    for key, value in table.items():
        own = isinstance(value, dict) and key not in BY_PATTERN
        settings |= {f"{key}.{name}": v for name, v in value.items()} if own else {key: value}
    for key, value in settings.items():
        if isinstance(value, dict) and key.rpartition(".")[2] not in BY_PATTERN:
            expected = "a number, text or boolean"
            raise Refused(must(f"{one_line(key)} in {where}", value, expected))
    return settings


def to_toml(settings: Mapping[str, Any]) -> bytes:
    """Serializes settings that are plain texts, numbers and truth values."""
    # JSON scalars are TOML scalars as long as texts are plain, as names and addresses are.
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()).encode()
