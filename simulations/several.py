"""Methods that are run together, and settings that are given for all of them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engram.checks import must
from federation.errors import Refused
from federation.methods import METHODS, family, unknown_method
from federation.methods.local import LocalMethod
from simulations.options import in_project, refuse_keys

__all__ = [
    "check_counts",
    "named_methods",
    "settings_of_each",
    "settings_of_one",
    "trained_methods",
]


def trained_methods(command: str, given: Sequence[str] = ()) -> list[str]:
    """Returns the methods that train networks.

    Raises:
        Refused: One that is given to the command is a known one, but none of these.
    """
    trained = family(LocalMethod.plug_in)
    others = [name for name in given if name in METHODS and name not in trained]
    if others:
        raise Refused(f"{command} takes methods that train networks, got {', '.join(others)}")
    return trained


def named_methods(given: object) -> list[str]:
    """Returns the methods that a caller names: several, or one alone.

    Raises:
        Refused: Something given is no method's name.
    """
    names = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    unknown = [name for name in names if not isinstance(name, str) or name not in METHODS]
    if unknown:
        raise Refused("; ".join(unknown_method("method", name) for name in unknown))
    return list(dict.fromkeys(map(str, names)))


def check_counts(**counts: object) -> None:
    """Refuses numbers of runs and trials, given by name, of which there would be none."""
    wrong = [
        must(name, count, "a whole number, at least 1")
        for name, count in counts.items()
        if not isinstance(count, int) or count < 1
    ]
    if wrong:
        raise Refused("; ".join(wrong))


def settings_of_each(
    methods: Sequence[str], overrides: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Returns each method's settings: those for all, and those for it alone.

    Raises:
        Refused: A setting is for a method that does not take part, or is none of these commands.
    """
    one_run = {"resume": "--resume RUN", "out": "--out DIR", "method": "its arguments"}
    refuse_keys({key.rpartition(".")[2]: None for key in overrides}, one_run)
    refuse_keys(overrides, {f"{name}.seed": "--set seed=N, for all of them" for name in methods})
    return {
        name: in_project({"method": name, **settings_of_one(name, methods, overrides)})
        for name in methods
    }


def settings_of_one(
    name: str, methods: Sequence[str], overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns one method's settings of those that are given, by key, for several.

    Raises:
        Refused: A setting is for a method that does not take part.
    """
    found: dict[str, Any] = {}
    own = {other: METHODS[other].all_keys() for other in methods if other in METHODS}
    for full, value in overrides.items():
        owner, dot, key = full.rpartition(".")
        if dot and owner not in methods:
            raise Refused(f"{full} is for a method that does not take part: {owner}")
        if not dot and name in own and key not in own[name] and any(key in o for o in own.values()):
            continue  # other methods have it
        if not dot or owner == name:
            found[key] = value
    return found
