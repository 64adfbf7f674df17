"""Settings of methods: frozen dataclasses with ranges and meanings of fields."""

import operator
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, fields
from itertools import chain
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, dataclass_transform, get_type_hints

from annotated_types import Ge, Gt, Interval, Le, Lt

from engram.core.checks import require
from engram.core.types import Scale

Part = Literal["", "head", "body", "norm", "all"]


class Search(NamedTuple):
    """The range in which tuning searches a setting.

    Attributes:
        low: Least value.
        high: Greatest value.
        log: Whether it is searched by its logarithm.
    """

    low: float
    high: float
    log: bool = False


class OnServer:
    """Mark of a setting that only the server reads, so that clients train alike for all values."""


Step = Annotated[float, Gt(0), Search(1e-3, 1, log=True)]
Eta = Annotated[Step, "step size of a client's local steps"]
Mixed = Annotated[float, Interval(ge=0, le=1), Search(0, 1)]
Several = Annotated[int, Interval(ge=1, le=100)]
Share = Annotated[float, Gt(0), Lt(1), Search(0.1, 0.9)]
Strength = Annotated[float, Ge(0), Search(1e-2, 10, log=True)]
Penalty = Annotated[float, Ge(0), Search(1e-4, 1, log=True)]
Proximal = Annotated[Strength, "weight of the proximal term; 0: local models"]


class About(NamedTuple):
    """Facts about a method, for listings and checks.

    Attributes:
        name: What users call it.
        source: The paper that has its equations.
        tasks: Names of the tasks that it can learn; empty for all.
        personal: The part of the network that each client keeps, unless ``personal`` or ``share``
            say otherwise.
        compared: Whether comparisons include it unless methods are named.
        reference: Whether every comparison includes it.
    """

    name: str
    source: str
    tasks: tuple[str, ...] = ()
    personal: Part = ""
    compared: bool = False
    reference: bool = False


METHODS: dict[str, type] = {}
"""Methods of the network family that have been imported, by name."""

_C = TypeVar("_C", bound=type)


@dataclass_transform(frozen_default=True)
def method(
    name: str,
    *,
    source: str,
    tasks: tuple[str, ...] = (),
    personal: Part = "",
    compared: bool = False,
    reference: bool = False,
) -> Callable[[_C], _C]:
    """Registers a class as a method: a frozen dataclass with checked ranges.

    Its annotated fields are the settings: ``Annotated[type, ranges of annotated_types, Search,
    OnServer, "meaning"]``, each with a default; ``OnServer`` if clients do not read it. The first
    line of its docstring describes the method in a few words. It has ``build(context) -> Method``,
    and may have ``faults()``, which yields a ``Fault`` for each impossible combination of settings.
    The arguments are the attributes of ``About``.
    """

    def register(cls: _C) -> _C:
        made: Any = cls
        made.about = About(name, source, tasks, personal, compared, reference)
        made.__post_init__ = _check
        METHODS[name] = made = dataclass(frozen=True)(made)
        return made  # type: ignore[no-any-return]  # it is the class that was given

    return register


def about(settings: Any) -> About:
    """Returns the facts about the method of these settings."""
    found: About = settings.about
    return found


def ranges(cls: type) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yields the fields of a method's settings, each with its annotations and their bounds."""
    hints = get_type_hints(cls, include_extras=True)
    for field in fields(cls):
        notes = getattr(hints[field.name], "__metadata__", ())
        bounds = (note if isinstance(note, Interval) else [note] for note in notes)
        yield field.name, tuple(chain.from_iterable(bounds))


def numbers(cls: type) -> dict[str, bool]:
    """Returns the names of float settings, and for each whether clients read it."""
    kinds = get_type_hints(cls)
    return {name: OnServer not in notes for name, notes in ranges(cls) if kinds[name] is float}


def with_values(settings: Any, values: Mapping[str, Scale]) -> Any:
    """Returns settings with other, unchecked values.

    ``numbers`` may be tensors, with an entry for each of several clients.
    """
    found = copy(settings)
    for name, value in values.items():
        object.__setattr__(found, name, value)
    return found


def _check(settings: Any) -> None:
    for name, notes in ranges(type(settings)):
        value = getattr(settings, name)
        for bound in notes:
            for kind, (words, holds) in _BOUNDS.items():
                if isinstance(bound, kind):
                    limit, key = getattr(bound, holds.__name__), name.strip("_")
                    ok = holds(value, limit)
                    require(ok, key.replace("_", "-"), value, f"{words} {limit}")
    for fault in settings.faults() if hasattr(settings, "faults") else ():
        raise ValueError(fault.text)


_BOUNDS: dict[type, tuple[str, Callable[[Any, Any], Any]]] = {
    Gt: ("above", operator.gt),
    Ge: ("at least", operator.ge),
    Lt: ("below", operator.lt),
    Le: ("at most", operator.le),
}
