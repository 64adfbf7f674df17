"""The settings of a run or a comparison, and the command that repeats it."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    """Returns the command that repeats the run, or the comparison of its methods."""
    defaults = default_config()
    if not (folder / PLAN).is_file():
        return " ".join(["engram run", settings["method"], *_sets(settings, defaults)])
    plan = read_plan(folder)["runs"]
    methods = dict.fromkeys(own["method"] for own in plan.values())
    seeds = {own["seed"] for own in plan.values()}
    given = dict.fromkeys(
        word
        for own in plan.values()
        for word in _sets(_named_apart(own | {"seed": min(seeds)}, plan), defaults)
    )
    return " ".join(["engram compare", *methods, f"--seeds {len(seeds)}", *given])


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


def _sets(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """Returns the options that give what differs from the defaults."""
    passed = {"method", "resume", "out"}
    return [
        f"--set {shlex.quote(f'{key}={_text(value)}')}"
        for key, value in settings.items()
        if key.rpartition(".")[2] not in passed and value != defaults.get(key)
    ]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
