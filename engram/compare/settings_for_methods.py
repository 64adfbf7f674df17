"""Methods that are run together, and settings that are given for all of them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from engram.arguments import in_project, read_experiment, refuse_keys
from engram.core.checks import Fault
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment, owners_of
from engram.settings.families import METHODS, family, unknown_method
from engram.settings.network import NetworkMethod

TRAINING_NETWORKS: Final = "some that train networks (`engram methods` lists them)"


def check_trained(command: str, given: Sequence[str]) -> None:
    """Refuses known methods that train no network."""
    trained = family(NetworkMethod.plug_in)
    others = [name for name in given if name in METHODS and name not in trained]
    if others:
        raise Refused(f"{command} takes methods that train networks, got {', '.join(others)}")


def named_methods(given: object) -> list[str]:
    """Returns the methods that a caller names: several, or one alone.

    Raises:
        Refused: Something given is no method's name.
    """
    names = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    unknown = [name for name in names if not isinstance(name, str) or name not in METHODS]
    if unknown:
        raise Refused(*(unknown_method("method", name) for name in unknown))
    return list(dict.fromkeys(map(str, names)))


def settings_of_each(
    methods: Sequence[str], overrides: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Returns each method's settings: those for all, and those for it alone.

    A file of one method's settings, which names it, is for all methods if that one takes part.

    Raises:
        Refused: A setting is none of these commands; or as ``possible`` says.
    """
    given = dict(overrides)
    if (named := given.pop("method", None)) not in (None, *methods):
        raise Refused(f"method {named}, of --config or --set, does not take part")
    one_run = {"resume": "--resume RUN", "out": "--out DIR", "method": "its arguments"}
    refuse_keys({key.rpartition(".")[2]: None for key in given}, one_run)
    refuse_keys(given, {f"{name}.seed": "--set seed=N, for all of them" for name in methods})
    found = {name: in_project({"method": name, **settings_of_one(name, given)}) for name in methods}
    return possible(found, given)


def possible(each: dict[str, dict[str, Any]], given: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns each method's settings, if all can be.

    Raises:
        Refused: In one line: which of the given settings are for methods that do not take part,
            and what is wrong with the others; with the data, as ``read_experiment`` says for the
            first method that it refuses.
    """
    refused: list[Fault] = []
    for own in each.values():
        read = Experiment.from_config if refused else read_experiment
        try:
            read(own)
        except Refused as error:
            refused += error.faults
    if wrong := dict.fromkeys([*absent(list(each), given), *refused]):
        raise Refused(*wrong)
    return each


def absent(methods: Sequence[str], keys: Iterable[str]) -> list[Fault]:
    """Returns a fault for each setting that is for other methods than these."""
    found = []
    for full in keys if METHODS.keys() >= set(methods) else ():
        owner, dot, _ = full.rpartition(".")
        owners = [owner] if dot else owners_of(full)
        if owners and not set(owners) & set(methods):
            owner = ", ".join(owners)
            text = f"{full} is for a method that does not take part: {owner}"
            found.append(Fault((full,), text))
    return found


def settings_of_one(name: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns one method's settings of those that are given, by key, for several."""
    found: dict[str, Any] = {}
    for full, value in overrides.items():
        owner, dot, key = full.rpartition(".")
        foreign = name in METHODS and key not in METHODS[name].all_keys() and owners_of(key)
        if owner == name or not (dot or foreign):
            found[key] = value
    return found
