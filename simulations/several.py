"""Settings of several methods that are given together."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from federation.errors import Refused
from federation.experiment import Experiment, owners_of
from federation.methods import METHODS, family
from federation.methods.local import LocalMethod
from simulations.options import in_project, read_experiment, refuse_keys

__all__ = ["absent", "settings_of_each", "trained_methods"]


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

    Raises:
        Refused: A setting is none of these commands. Or in one line: those for methods that do not
            take part, and what is wrong with the others; with the data, as ``read_experiment``
            says for the first method that it refuses.
    """
    one_run = {"resume": "--resume RUN", "out": "--out DIR", "method": "its arguments"}
    refuse_keys({key.rpartition(".")[2]: None for key in overrides}, one_run)
    refuse_keys(overrides, {f"{name}.seed": "--set seed=N, for all of them" for name in methods})
    found = {name: in_project({"method": name, **_of_one(name, overrides)}) for name in methods}
    refused: list[str] = []
    for given in found.values():
        read = Experiment.from_config if refused else read_experiment
        try:
            read(given)
        except Refused as error:
            refused += str(error).split("; ")
    if wrong := dict.fromkeys([*absent(methods, overrides), *refused]):
        raise Refused("; ".join(wrong))
    return found


def absent(methods: Sequence[str], keys: Iterable[str]) -> list[str]:
    """Says which settings are for other methods than these, a line for each."""
    found = []
    for full in keys if METHODS.keys() >= set(methods) else ():
        owner, dot, _ = full.rpartition(".")
        owners = [owner] if dot else owners_of(full)
        if owners and not set(owners) & set(methods):
            owner = ", ".join(owners)
            found.append(f"{full} is for a method that does not take part: {owner}")
    return found


def _of_one(name: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for full, value in overrides.items():
        owner, dot, key = full.rpartition(".")
        foreign = name in METHODS and key not in METHODS[name].all_keys() and owners_of(key)
        if owner == name or not (dot or foreign):
            found[key] = value
    return found
