"""Settings as files and command lines write them, before anything is made of them."""

import tomllib
from pathlib import Path
from typing import Any, Final

from federation.errors import Refused, one_line
from federation.files import read_file

__all__ = ["MACHINE", "Scalar", "read_settings"]

_LARGEST: Final = 2**20  # bytes of a file of settings

Scalar = bool | int | float | str

MACHINE: Final[dict[str, type]] = {
    "data-dir": str,
    "device": str,
    "cpu-threads": int,
    "memory-budget": float,
}
"""Settings of an experiment that each machine may have its own value of, and their types."""


def read_settings(path: Path) -> dict[str, Any]:
    """Returns a TOML file's settings.

    Raises:
        Refused: The file is missing, is not TOML, or has tables.
    """
    try:
        settings = tomllib.loads(read_file(path, most=_LARGEST).decode())
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, too
        raise Refused(f"{path} is not TOML: {one_line(str(error))}") from error
    tables = [key for key, value in settings.items() if isinstance(value, dict | list)]
    if tables:
        raise Refused(f"{path} must be flat, one `key = value` a line; {tables[0]} is not")
    return settings
