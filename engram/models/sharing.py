"""Which parameters of a network clients share, and which ones each client keeps to itself."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Literal

from engram.checks import must, require
from engram.models.base import Model
from engram.types import Params

__all__ = ["Part", "check_body", "keep", "last_layers", "part_of", "with_personal"]


Part = Literal["", "head", "body", "norm", "all"]


def part_of(model: Model, names: Iterable[str], part: Part) -> frozenset[str]:
    """Returns the names of a part of a network.

    Args:
        model: The network.
        names: Of its parameters, in the order of its layers.
        part: ``head``, the last layer that has parameters; ``body``, all others; ``norm``, the
            layers that keep running statistics, which belong to the part, too; ``all`` of it; ""
            for nothing.
    """
    layers = _layers(names)
    last = {layers[name] for name in last_layers(model, layers, 1)}
    normed = {layer for name, layer in layers.items() if name in model.running}
    every = {*layers.values()}
    chosen = {"": set(), "head": last, "body": every - last, "norm": normed, "all": every}[part]
    return frozenset(name for name, layer in layers.items() if layer in chosen)


def last_layers(model: Model, names: Iterable[str], count: int) -> frozenset[str]:
    """Returns the names of the parameters of a network's last layers that have some.

    Args:
        model: The network.
        names: Of its parameters, in the order of its layers.
        count: How many layers, >= 1; all of them, if there are no more.
    """
    layers = {n: layer for n, layer in _layers(names).items() if n not in model.running}
    last = list(dict.fromkeys(layers.values()))[-count:]
    return frozenset(name for name, layer in layers.items() if layer in last)


def _layers(names: Iterable[str]) -> dict[str, str]:
    return {name: name.rpartition(".")[0] for name in names}


def with_personal(
    model: Model,
    names: Iterable[str],
    *,
    personal: str,
    share: str,
    running: bool,
    part: Part = "",
) -> Model:
    """Returns a network some of whose parameters are each client's own.

    Args:
        model: The network.
        names: Of its parameters.
        personal: Patterns of names, with commas, such as ``head.*``: whatever matches one is
            personal.
        share: Patterns likewise: where there are some, whatever matches none is personal.
        running: Whether running statistics are personal, too.
        part: A part that is personal, as ``part_of`` has it, where there are no patterns.

    Raises:
        ValueError: If a pattern matches nothing, the network lacks the part, or nothing is left to
            share.
    """
    called = {name: model.names.get(name, name) for name in names}
    found = set(model.running) if running else set()
    if part and not (personal or share):
        own = part_of(model, called, part)
        normed = "batch norm with running statistics (not with norm=group or statistics=fixed)"
        lacks = normed if part == "norm" else f"a {part}"
        require(bool(own), "model", "one without", f"a network that has {lacks}")
        found |= own
    for key, text, kept in (("personal", personal, True), ("share", share, False)):
        patterns = [pattern.strip() for pattern in text.split(",") if pattern.strip()]
        for pattern in patterns:
            if not any(fnmatchcase(theirs, pattern) for theirs in called.values()):
                some = ", ".join(list(called.values())[:4])
                raise ValueError(must(key, pattern, f"patterns of parameters, such as {some}"))
        matched = {n for n, c in called.items() if any(fnmatchcase(c, p) for p in patterns)}
        if patterns:
            found |= matched if kept else called.keys() - matched
    if part == "head" and not (personal or share):
        check_body(model, called, frozenset(found))
    if not called.keys() - found - model.running and part != "all":
        raise ValueError(must("share", "nothing", "some parameters, which clients learn together"))
    return model._replace(personal=frozenset(found))


def check_body(model: Model, names: Iterable[str], head: frozenset[str]) -> None:
    """Checks that something below a head is trained, besides running statistics.

    Raises:
        ValueError: If nothing is.
    """
    trained = set(names) - head - model.running
    expected = "a network that has parameters below its last layer, besides running statistics"
    require(bool(trained), "model", "one without", expected)


def keep(params: Params, names: frozenset[str], *, personal: bool) -> Params:
    """Returns the parameters that are personal, or those that are not."""
    return {name: leaf for name, leaf in params.items() if (name in names) == personal}
