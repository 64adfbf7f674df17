"""The settings of a run or a comparison, and the command that repeats it."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from federation.data.source import Source
from federation.experiment import default_config
from simulations.comparison import PLAN, read_plan

__all__ = ["repeating", "settings_of"]


def settings_of(folder: Path, settings: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Returns each setting's name, value and default, those that differ first.

    Args:
        folder: Of the run, or of the comparison, of which each method's value is told.
        settings: The run's; for a comparison, those of its first run.
    """
    values, defaults = _values(folder, settings), default_config()
    shown = [(key, _text(value), _text(defaults.get(key, ""))) for key, value in values.items()]
    return sorted(shown, key=lambda row: row[1] == row[2])


def _values(folder: Path, own: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run's settings; for a comparison, those of all its methods."""
    if not (folder / PLAN).is_file():
        return dict(own)
    found: dict[str, dict[str, None]] = {}
    for run in read_plan(folder)["runs"].values():
        for key, value in run.items():
            found.setdefault(key, {})[_text(value)] = None
    return {key: ", ".join(values) for key, values in found.items()}


def repeating(folder: Path, settings: Mapping[str, Any]) -> str:
    """Returns the command that repeats the run, or the comparison of its methods.

    Of data that were given in memory, it is a call in Python.
    """
    if not (folder / PLAN).is_file():
        method, given = settings["method"], _given(settings)
        if _in_memory(given):
            return f"engram.simulate(data, method={method!r}, {_arguments(given)})"
        return " ".join(["engram run", method, *_options(given)])
    plan = read_plan(folder)["runs"]
    methods = [*dict.fromkeys(own["method"] for own in plan.values())]
    seeds = {own["seed"] for own in plan.values()}
    given = {}
    for own in plan.values():
        given |= _given(_named_apart(own | {"seed": min(seeds)}, plan))
    if _in_memory(given):
        return f"engram.compare(data, {methods=}, seeds={len(seeds)}, {_arguments(given)})"
    return " ".join(["engram compare", *methods, f"--seeds {len(seeds)}", *_options(given)])


def _named_apart(own: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run's settings: what other methods of its comparison have otherwise, as its own."""
    method = own["method"]
    others = [run for run in plan.values() if run["method"] != method]
    return {
        key
        if key == "seed" or all(run.get(key, value) == value for run in others)
        else f"{method}.{key}": value
        for key, value in own.items()
    }


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that differ from the defaults."""
    passed, defaults = {"method", "resume", "out"}, default_config()
    return {
        key: value
        for key, value in settings.items()
        if key.rpartition(".")[2] not in passed and value != defaults.get(key)
    }


def _in_memory(given: Mapping[str, Any]) -> bool:
    return Source(given.get("dataset", "")).in_memory


def _options(given: Mapping[str, Any]) -> list[str]:
    return [f"--set {shlex.quote(f'{key}={_text(value)}')}" for key, value in given.items()]


def _arguments(given: Mapping[str, Any]) -> str:
    return f"**{ {key: value for key, value in given.items() if key != 'dataset'} }"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
