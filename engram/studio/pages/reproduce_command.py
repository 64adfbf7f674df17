"""The settings of a run or a comparison, and the command that repeats it."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from engram.arguments import REFERENCES
from engram.compare.comparison_folder import PLAN, read_plan
from engram.data.augmentations import AUGMENTATIONS
from engram.data.source import BUILT_IN, Source
from engram.networks.optimizers import BUILT_IN_OPTIMIZERS, SCHEDULES
from engram.networks.registry import BUILT_IN as BUILT_IN_NETWORKS
from engram.networks.registry import TORCHVISION
from engram.runs.run import Run
from engram.scoring.metrics import BUILT_IN as BUILT_IN_METRICS
from engram.settings.experiment import default_config, without_former


def _among(registry: Mapping[str, Any]) -> Callable[[str], bool]:
    return lambda name: getattr(registry.get(name), "__module__", "").startswith("engram.")


_OURS: Final[Mapping[str, Callable[[str], bool]]] = {
    "model": lambda name: name in BUILT_IN_NETWORKS or name.startswith(TORCHVISION),
    "loss": lambda name: False,
    "metrics": lambda name: name in BUILT_IN_METRICS,
    "augment": _among(AUGMENTATIONS),
    "schedule": _among(SCHEDULES),
    "optimizer": lambda name: name in BUILT_IN_OPTIMIZERS,
}
"""Settings that may name what a user has made: whether a name is one of the platform's."""


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
    if not (folder / PLAN).is_file():
        return dict(own)
    found: dict[str, dict[str, None]] = {}
    for run in read_plan(folder)["runs"].values():
        for key, value in run.items():
            found.setdefault(key, {})[_text(value)] = None
    return {key: ", ".join(values) for key, values in found.items()}


def repeating(folder: Path, config: Mapping[str, Any]) -> str:
    """Returns the command that repeats the run, or the comparison of its methods.

    Where rows or functions were given in Python, it is a call, below a line that says what it
    needs. Plug-ins are named. ``config`` is that of the run, or of one of the comparison's.
    """
    if not (folder / PLAN).is_file():
        method, given = config["settings"]["method"], _given(config["settings"])
        words = [method]
        if config["engine"] == "flower":
            server = Run(folder).federation or "SERVER_FOLDER"
            if folder.absolute().parent in Path(server).parents:  # made for this run alone
                clients = config["settings"]["num-clients"]
                own = {"method": method, **given}
                return _called("federation", own, config, [f"--clients {clients}"], {})
            words += ["--federation", shlex.quote(server)]
        return _called("run", given, config, words, {"method": method})
    recorded = read_plan(folder)
    plan, references = recorded["runs"], recorded["references"]
    methods = [*dict.fromkeys(own["method"] for own in plan.values())]
    seeds = {own["seed"] for own in plan.values()}
    given = {}
    for own in plan.values():
        given |= _given(_named_apart(own | {"seed": min(seeds)}, plan))
    words, more = [*methods, f"--seeds {len(seeds)}"], {"methods": methods, "seeds": len(seeds)}
    if references != [*REFERENCES]:
        words.append(f"--references {','.join(references) or 'none'}")
        more["references"] = references
    return _called("compare", given, config, words, more)


def _in_python(settings: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns the names of rows, functions and networks of Python's or of plug-ins, by setting."""
    found = {}
    for key, ours in _OURS.items():
        names = filter(None, str(settings.get(key, "")).split(","))
        if others := [name for name in names if not ours(name)]:
            found[key] = others
    source = Source(settings.get("dataset", ""))
    if source.in_memory or (not source.kind and source not in ("", *BUILT_IN)):
        found["dataset"] = ["data" if source.in_memory else str(source)]
    return found


def _called(
    command: str,
    given: Mapping[str, Any],
    config: Mapping[str, Any],
    words: list[str],
    more: Mapping[str, Any],
) -> str:
    plug_ins, own = config.get("plug-ins", []), _in_python(config["settings"])
    if lacks(config):
        return _call(command, given, own, plug_ins, more)
    options = [f"--set {shlex.quote(f'{key}={_text(value)}')}" for key, value in given.items()]
    named = [f"--plugin {shlex.quote(name)}" for name in plug_ins]
    return " ".join(["engram", *named, command, *words, *options])


def _call(
    command: str,
    given: Mapping[str, Any],
    own: Mapping[str, Sequence[str]],
    plug_ins: Sequence[str],
    more: Mapping[str, Any],
) -> str:
    rows = own.get("dataset", [])
    others = {} if plug_ins else {key: names for key, names in own.items() if key != "dataset"}
    named = {name: name.replace("-", "_") for names in others.values() for name in names}
    needs = ", ".join(dict.fromkeys([*rows, *named.values()]))
    lines = [f"# needs what runs do not record, as it was given: {needs}"]
    lines += [f"import {name}" for name in plug_ins]
    parts = ["data"] * (rows == ["data"]) + [f"{key}={value!r}" for key, value in more.items()]
    for key in others:
        values = [named.get(name, repr(name)) for name in str(given[key]).split(",")]
        value = f"[{', '.join(values)}]" if key == "metrics" else values[0]
        parts.append(f"{key.replace('-', '_')}={value}")
    passed = {*others, *(["dataset"] if rows == ["data"] else [])}
    parts.append(f"**{ {key: value for key, value in given.items() if key not in passed} }")
    called = "simulate" if command == "run" else command
    return "\n".join([*lines, f"engram.{called}({', '.join(parts)})"])


def lacks(config: Mapping[str, Any]) -> bool:
    """Returns whether a run needs rows or functions that were given in Python.

    What is not the platform's is taken for the plug-ins', where there were some.
    """
    own = _in_python(config["settings"])
    return own.get("dataset") == ["data"] or bool(own and not config.get("plug-ins"))


def _named_apart(own: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run's settings; those that other methods have otherwise as METHOD.KEY."""
    method = own["method"]
    others = [run for run in plan.values() if run["method"] != method]
    return {
        key
        if key == "seed" or all(run.get(key, value) == value for run in others)
        else f"{method}.{key}": value
        for key, value in own.items()
    }


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    passed, defaults = {"method", "resume", "out"}, default_config()
    return {
        key: value
        for key, value in without_former(settings).items()
        if key.rpartition(".")[2] not in passed and value != defaults.get(key)
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
