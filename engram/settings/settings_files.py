"""Reads settings from TOML files, without validating their values."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from engram.core.checks import must
from engram.settings.errors import Refused, one_line
from engram.settings.files import parse_json, parse_toml, read_file

RUN_KEYS: Final = (
    *("method", "dataset", "num-clients", "clients-per-round", "num-rounds"),
    *("device", "out", "resume"),
)
"""Settings that ``flwr run --run-config`` takes by themselves; ``engram`` has all others."""

BY_PATTERN: Final = ("eta", "weight-decay")
"""Settings that may be tables of patterns of parameters, which settings called ``-by`` hold."""

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


def in_run_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings in Flower's run config, by key.

    The key ``engram`` has settings as JSON; others stand beside it. Of ``RUN_KEYS`` an
    empty one counts as left out.

    Raises:
        Refused: ``engram`` is no object of JSON, or a setting is in it and beside it.
    """
    beside = {key: v for key, v in config.items() if v != "" or key not in ("engram", *RUN_KEYS)}
    text = beside.pop("engram", "{}")
    try:
        written = parse_json(str(text).encode())
    except ValueError as error:
        raise Refused(f"engram in a run config is not JSON: {one_line(str(error))}") from error
    if not isinstance(written, dict):
        expected = 'settings as JSON, such as {"local-steps": 3}'
        raise Refused(must("engram in a run config", text, expected))
    found = flat(written, "engram of a run config")
    if "engram" in found:  # what is read twice would be read as other settings
        raise Refused(must("engram in a run config", text, "settings without engram among them"))
    if twice := ", ".join(sorted(map(one_line, found.keys() & beside.keys()))):
        raise Refused(f"{twice} must be given in engram or beside it in a run config, got both")
    return found | beside


def run_config_table() -> str:
    """Returns ``[tool.flwr.app.config]`` of a pyproject.toml: ``engram`` and ``RUN_KEYS``."""
    return "[tool.flwr.app.config]\n" + to_toml(dict.fromkeys(("engram", *RUN_KEYS), "")).decode()


def to_toml(settings: Mapping[str, Any]) -> bytes:
    """Serializes settings that are plain texts, numbers and truth values."""
    # JSON scalars are TOML scalars as long as texts are plain, as names and addresses are.
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()).encode()
