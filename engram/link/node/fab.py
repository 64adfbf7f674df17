"""Reads a run's settings from an untrusted app bundle (FAB): a zip with a pyproject.toml."""

import zipfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from io import BytesIO
from typing import Any, Final

from engram.settings.errors import Refused, one_line
from engram.settings.files import parse_toml

_PROJECT: Final = "pyproject.toml"
_LARGEST_BUNDLE: Final = 10 * 2**20  # bytes; `flwr build` makes no larger one
_LARGEST_PROJECT: Final = 2**20  # bytes; Engram's has about ten thousand
_PLAIN: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others unpack without a bound


def read_project(bundle: bytes) -> bytes:
    """A bundle's pyproject.toml, read in bounded memory even from a hostile bundle.

    Raises:
        Refused: If the bundle is too large, or not such an archive.
    """
    if len(bundle) > _LARGEST_BUNDLE:
        raise Refused(f"has {len(bundle)} bytes, more than {_LARGEST_BUNDLE}")
    try:
        with zipfile.ZipFile(BytesIO(bundle)) as archive:
            entry = archive.getinfo(_PROJECT)
            if entry.compress_type not in _PLAIN:
                raise Refused(f"has a {_PROJECT} that is neither stored nor deflated")
            with archive.open(entry) as file:
                project = file.read(_LARGEST_PROJECT + 1)
    except Refused:
        raise
    except Exception as error:  # untrusted bytes: zipfile may raise anything
        raise Refused(f"is not an archive with a {_PROJECT}: {one_line(repr(error))}") from error
    if len(project) > _LARGEST_PROJECT:
        raise Refused(f"has a {_PROJECT} of more than {_LARGEST_PROJECT} bytes")
    return project


def read_run_config(project: bytes, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run's settings: its app's defaults, with the run's overrides.

    Call this only in a process that may take long or die: a few kilobytes of TOML can cause that.

    Args:
        project: The app's pyproject.toml.
        overrides: Settings by name.

    Raises:
        Refused: If it is not TOML, or lacks Flower's tables or an overridden setting.
    """
    return dict(_read_run_config(project, tuple(overrides.items())))


@lru_cache(maxsize=1)  # a worker answers many messages of one run
def _read_run_config(project: bytes, overrides: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    try:
        table = parse_toml(project)["tool"]["flwr"]["app"].get("config", {})
        settings, others = dict(_flat(table)), dict(overrides)
        for key in others.keys() - settings.keys():
            raise ValueError(f"Key '{key}' is not present in it")
    except Exception as error:  # too deep, for one, or a table that is a number
        reason = f"the run's {_PROJECT} cannot be read: {one_line(repr(error))}"
        raise Refused(reason) from error
    return settings | others


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the settings of nested tables, with dots in their keys, as Flower does."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, bool | float | int | str):
            yield f"{prefix}{key}", value
        else:
            raise ValueError(f"{key} must be a number, a text, a boolean or a table of such")
