"""Protections of users, by name."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from engram.core.checks import must, require
from engram.core.process_modes import Registry

if TYPE_CHECKING:
    from engram.guards.guard import Guard

GUARDS: Final[Registry[Callable[..., "Guard"]]] = Registry()
"""Functions that build guards, by name."""


def guard(function: Callable[..., Any], name: str = "") -> Callable[..., Any]:
    """Makes a function known as a protection, by its name; to be used as a decorator.

    It returns an ``engram.guards.guard.Guard``, and has no argument or one, a number with a
    default. The setting ``guards`` names it, with the number after a colon: ``guards="coarse:8"``.
    Where the argument is ``noise_multiplier``, no number is that setting's, or the one that is
    solved for ``epsilon``.

    Args:
        function: The function.
        name: Its name in the setting; by default the function's, with ``-`` for ``_``.

    Raises:
        ValueError: If the name has a comma, a colon or a slash.
    """
    name = name or function.__name__.replace("_", "-")
    expected = "a text without commas, colons and slashes"
    require(not {*",:/"} & {*name}, "name of a guard", name, expected)
    GUARDS[name] = function
    return function


def named_guards(text: str) -> list[tuple[str, tuple[float, ...]]]:
    """Returns the names that the setting ``guards`` has, each with its number, if there is one.

    Raises:
        ValueError: A name is unknown, or what follows a colon is no number.
    """
    found = list[tuple[str, tuple[float, ...]]]()
    for part in filter(None, map(str.strip, text.split(","))):
        name, colon, number = part.partition(":")
        known = f"some of {', '.join(GUARDS)}" if GUARDS else "names of your own guards"
        expected = f"{known}, from @engram.guard or a plug-in's (--plugin NAME)"
        if name not in GUARDS:
            raise ValueError(must("guards", name, expected))
        try:
            found.append((name, (float(number),) if colon else ()))
        except ValueError as error:
            raise ValueError(must("guards", part, f"{name}:NUMBER")) from error
    return found
