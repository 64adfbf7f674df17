"""A study's settings: a frozen dataclass whose fields become the options of its command."""

import dataclasses
import pkgutil
import typing
from collections.abc import Collection
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from federation.errors import Refused

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
    # Whether it is part of a folder's plan. Other options may be given anew with ``--resume``.
    kept: bool = True

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


def argument(default: Any = MISSING, *, help: str, **more: Any) -> Any:  # noqa: A002 - likewise
    """Makes a field that is given by its position; otherwise as ``option``."""
    return option(default, help=help, positional=True, **more)


def option_of(of: dataclasses.Field[Any]) -> Option:
    """Returns a field's option."""
    found: Option = of.metadata[_KEY]
    return found


def flag_of(of: dataclasses.Field[Any]) -> str:
    """Returns a field's name on the command line: in the singular if it may be repeated."""
    name = of.name.replace("_", "-")
    return name.removesuffix("s") if typing.get_origin(of.type) is tuple else name


@dataclass(frozen=True)
class StudySettings:
    """Base of all studies' settings. A subclass's docstring is its command's help.

    Raises:
        Refused: A value is not allowed, lies outside its range, or is named twice.
    """

    def __post_init__(self) -> None:
        """Checks every field by its option."""
        for each in fields(self):
            told, value = option_of(each), getattr(self, each.name)
            if each.type is Path and not isinstance(value, Path):
                object.__setattr__(self, each.name, Path(value))
            elif typing.get_origin(each.type) is tuple:
                if not value and told.allowed is not None:
                    object.__setattr__(self, each.name, tuple(told.allowed))
                _check_tuple(each, told, value)
            elif value is not None:
                _check(flag_of(each), told, value)

    @property
    def detail(self) -> str:
        """Suffix to the study's name in the default name of its folder."""
        return ""


def _check_tuple(of: dataclasses.Field[Any], told: Option, values: tuple[Any, ...]) -> None:
    for value in values:
        _check(flag_of(of), told, value)
    limited = told.among is not None or told.least is not None
    if limited and len(set(values)) < len(values):
        name, given = of.name.replace("_", " "), ", ".join(map(str, values))
        raise Refused(f"{name} must be named once each, got {given}")


def _check(name: str, told: Option, value: Any) -> None:
    allowed = told.allowed
    if allowed is not None and value not in allowed:
        raise Refused(f"{name} must be one of {', '.join(map(str, allowed))}, got {value!r}")
    if told.least is not None and value < told.least:
        raise Refused(f"{name} must be at least {told.least}, got {value}")
    if told.most is not None and value > told.most:
        raise Refused(f"{name} must be at most {told.most}, got {value}")
