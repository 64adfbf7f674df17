"""Settings of several methods that are given together."""

from collections.abc import Mapping, Sequence
from typing import Any

from federation.errors import Refused
from federation.methods import METHODS, family
from federation.methods.local import LocalMethod
from simulations.options import in_project, refuse_keys

__all__ = ["settings_of_each", "trained_methods"]


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


def settings_of_each(
    methods: Sequence[str], overrides: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Returns each method's settings: those for all, and those for it alone.

    A file of one method's settings, which names it, is for all methods if that one takes part.

    Raises:
        Refused: A setting is for a method that does not take part, or is none of these commands.
    """
    given = dict(overrides)
    if (named := given.pop("method", None)) not in (None, *methods):
        raise Refused(f"method {named}, of --config or --set, does not take part")
    one_run = {"resume": "--resume RUN", "out": "--out DIR", "method": "its arguments"}
    refuse_keys({key.rpartition(".")[2]: None for key in given}, one_run)
    refuse_keys(given, {f"{name}.seed": "--set seed=N, for all of them" for name in methods})
    return {name: in_project({"method": name, **_of_one(name, methods, given)}) for name in methods}


def _of_one(name: str, methods: Sequence[str], overrides: Mapping[str, Any]) -> dict[str, Any]:
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
