"""Schedules and optimizers by name: those that come with the platform, and those of users."""

import inspect
from collections.abc import Callable
from math import cos, inf, nan, pi
from typing import Any, Final, NamedTuple

from engram.core.checks import must, require
from engram.core.process_modes import Registry
from engram.scoring.metrics import name_of

BUILT_IN_OPTIMIZERS: Final = ("sgd", "momentum", "adam", "adamw")
"""Optimizers that ``engram.core.slot_optimizers`` computes by equations of its own."""

Schedule = Callable[[int, int], float]
"""``(round in 1..rounds, rounds) -> factor`` of the step size."""


def _cosine(server_round: int, rounds: int) -> float:
    """Goes from 1 in the first round towards 0 after the last one."""
    return (1 + cos(pi * ((server_round - 1) / rounds))) / 2


def _step(server_round: int, rounds: int) -> float:
    """Is a tenth after half of the rounds, and a hundredth after three quarters."""
    passed = (server_round - 1) / rounds
    return float(0.1 ** ((passed >= 0.5) + (passed >= 0.75)))


SCHEDULES: Registry[Schedule] = Registry(
    constant=lambda server_round, rounds: 1.0, cosine=_cosine, step=_step
)
"""Every schedule, by its name."""

_SCHEDULES: Final = frozenset(SCHEDULES)


def by_pattern(text: str) -> dict[str, float]:
    """Returns numbers by patterns, of a text such as ``0.*=0.03,*.bias=0.1``; NaN for no number."""
    found = {}
    for part in filter(None, map(str.strip, text.split(","))):
        pattern, _, value = part.rpartition("=")
        try:
            found[pattern] = float(value)
        except ValueError:
            found[pattern] = nan
    return found


class OwnOptimizer(NamedTuple):
    """An optimizer of a user's.

    Attributes:
        update: The function, as ``optimizer`` takes it.
        moments: The names of its moments.
        counts: Whether it is given the number of the step.
    """

    update: Callable[..., Any]
    moments: tuple[str, ...]
    counts: bool

    @property
    def remembers(self) -> bool:
        """Whether it has a state from one step to the next."""
        return self.counts or bool(self.moments)


OPTIMIZERS: Registry[OwnOptimizer] = Registry()
"""Optimizers of users, by name."""


def schedule(function: Callable[[int], float], name: str = "") -> Callable[[int], float]:
    """Makes a function known as a schedule, by its name; to be used as a decorator.

    Args:
        function: ``round -> factor``, by which step sizes are multiplied in a round, from 1; 0 or
            more.
        name: What it is called in the setting ``schedule``; by default as the function, with ``-``
            for ``_``.

    Raises:
        ValueError: If the name is that of a built-in schedule.
    """
    name = name or name_of(function)
    _refuse_torchs(function, "schedule", "a function, round -> factor of the step size")
    require(name not in _SCHEDULES, "name of a schedule", name, "one that no built-in one has")
    SCHEDULES[name] = lambda server_round, rounds: function(server_round)
    return function


def step_factors(name: str, rounds: int) -> list[float]:
    """Returns a schedule's factors of the step size in each round; the last is that of later ones.

    Raises:
        ValueError: If a user's schedule gives anything but a finite number, 0 or more.
    """
    if name == "constant":
        return [1.0]
    schedule, factors = SCHEDULES[name], []
    for server_round in range(1, rounds + 1):
        found: Any = None
        try:
            factor = float(found := schedule(server_round, rounds))
        except Exception as error:  # a schedule may be anybody's
            got = found if found is not None else f"{type(error).__name__}: {error}"
            raise ValueError(must(f"schedule {name}", got, "a number for each round")) from error
        if not 0 <= factor < inf:
            wanted = f"a finite number, 0 or more, in round {server_round}"
            raise ValueError(must(f"schedule {name}", factor, wanted))
        factors.append(factor)
    return factors


def _refuse_torchs(function: Callable[..., Any], key: str, expected: str) -> None:
    made = getattr(function, "func", function)
    place = str(getattr(made, "__module__", ""))
    require(not place.startswith("torch.optim"), key, f"{place}.{name_of(made)}", expected)


def optimizer(function: Callable[..., Any], name: str = "") -> Callable[..., Any]:
    """Makes a function known as an optimizer, by its name; to be used as a decorator.

    It is called for each parameter, with the gradient (what a method has in its place, clipped and
    with weight decay), and returns the direction d of a step ``w <- w - eta d``, all of one shape.
    Its other arguments by position are moments: tensors of the same shape, 0 before the first step,
    which it returns behind the direction. An argument ``step`` by keyword alone is the number of
    the step, from 1::

        def adagrad(gradient, squares):
            squares = squares + gradient**2
            return gradient / (squares.sqrt() + 1e-8), squares

    Args:
        function: The optimizer.
        name: What it is called in the setting ``optimizer``; by default as
            the function, with ``-`` for ``_``.

    Raises:
        ValueError: If the name is that of a built-in optimizer, or arguments are none of these.
    """
    name = name or name_of(function)
    kinds = ", ".join(BUILT_IN_OPTIMIZERS)
    wanted = f"{kinds} (with eta, momentum, weight-decay), or a function, gradient -> direction"
    _refuse_torchs(function, "optimizer", wanted)
    free = name not in BUILT_IN_OPTIMIZERS
    require(free, "name of an optimizer", name, "one that no built-in one has")
    try:
        arguments = inspect.signature(function).parameters
    except (TypeError, ValueError):  # built into torch, such as torch.sign
        arguments = inspect.signature(lambda gradient: gradient).parameters
    by_name = [key for key, one in arguments.items() if one.kind is one.KEYWORD_ONLY]
    by_place = [key for key, one in arguments.items() if one.kind <= one.POSITIONAL_OR_KEYWORD]
    known = set(by_name) <= {"step"} and len(by_name) + len(by_place) == len(arguments)
    wanted = "a gradient, moments, and by keyword alone step"
    require(known and bool(by_place), f"arguments of {name}", list(arguments), wanted)
    OPTIMIZERS[name] = OwnOptimizer(function, tuple(by_place[1:]), bool(by_name))
    return function
