"""A study's settings: a frozen dataclass with a field for each option of its command."""

import dataclasses
import pkgutil
import typing
from collections.abc import Collection, Iterator
from dataclasses import MISSING, dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from engram.core.checks import must
from engram.settings.errors import Refused

_KEY: Final = "option"  # of a field's metadata


class Option(NamedTuple):
    """A field's option on the command line, and its allowed values."""

    help: str  # its text in ``--help``
    flags: tuple[str, ...] = ()  # the option's names; empty for that of ``flag_of``
    metavar: str | None = None  # the placeholder of its value in ``--help``
    least: float | None = None  # smallest value of a number, or of each number of a tuple
    most: float | None = None  # largest value
    # The allowed names or numbers; for modules that are slow to import, where they are found, as
    # ``package.module:NAME``. For a tuple of these, the empty tuple stands for all.
    among: Collection[Any] | str | None = None
    positional: bool = False  # whether it is an argument, without a flag

    @property
    def allowed(self) -> Collection[Any] | None:
        """The allowed values; None for any."""
        if isinstance(self.among, str):
            found: Collection[Any] = pkgutil.resolve_name(self.among)
            return found
        return self.among


def option(default: Any = MISSING, *, help: str, **more: Any) -> Any:  # noqa: A002 - typer's word
    """Makes a field that is given as ``--name VALUE``; required if it has no default."""
    return field(default=default, metadata={_KEY: Option(help, **more)})


def argument(default: Any = MISSING, *, help: str, **more: Any) -> Any:  # noqa: A002 - typer's word
    """Makes a field that is given by its position; otherwise as ``option``."""
    return option(default, help=help, positional=True, **more)


def option_of(of: dataclasses.Field[Any]) -> Option:
    """Returns a field's option."""
    found: Option = of.metadata[_KEY]
    return found


def flag_of(of: dataclasses.Field[Any]) -> str:
    """Returns a field's name on the command line: in the singular if it may be repeated."""
    name = of.name.replace("_", "-")
    return name.removesuffix("s") if _is_tuple(of) else name


@dataclass(frozen=True)
class StudySettings:
    """Base of all studies' settings. A subclass's docstring is its command's help.

    Raises:
        Refused: One line that names every value that is not allowed, lies outside its range, or is
            named twice; or, if there is none, all that ``problems`` yields.
    """

    def __post_init__(self) -> None:
        """Checks every field by its option, and then all of them together."""
        for each in fields(self):
            told, value = option_of(each), getattr(self, each.name)
            if each.type is Path and not isinstance(value, Path):
                object.__setattr__(self, each.name, Path(value))
            elif _is_tuple(each) and not value and told.allowed is not None:
                object.__setattr__(self, each.name, tuple(told.allowed))
        faults = chain(*(_faults(each, getattr(self, each.name)) for each in fields(self)))
        if wrong := list(faults) or list(self.problems()):
            raise Refused(*wrong)

    def problems(self) -> Iterator[str]:
        """Yields the faults of settings that are impossible together, one line each."""
        yield from ()

    @property
    def detail(self) -> str:
        """Suffix to the study's name in the default name of its folder."""
        return ""


def _is_tuple(of: dataclasses.Field[Any]) -> bool:
    return typing.get_origin(of.type) is tuple


def _faults(of: dataclasses.Field[Any], value: Any) -> Iterator[str]:
    told, values = option_of(of), value if _is_tuple(of) else (value,)
    for one in () if value is None else values:
        allowed = told.allowed
        if allowed is not None and one not in allowed:
            yield must(flag_of(of), one, f"one of {', '.join(map(str, allowed))}")
        if told.least is not None and one < told.least:
            yield must(flag_of(of), one, f"at least {told.least}")
        if told.most is not None and one > told.most:
            yield must(flag_of(of), one, f"at most {told.most}")
    limited = told.among is not None or told.least is not None
    if _is_tuple(of) and limited and len(set(values)) < len(values):
        name, given = of.name.replace("_", " "), ", ".join(map(str, values))
        yield f"{name} must be named once each, got {given}"
