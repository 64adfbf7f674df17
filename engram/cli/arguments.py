"""Arguments of commands and of functions, beside settings."""

from collections.abc import Collection, Iterable
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from engram.cli.options import check_unused
from engram.compare.comparison_folder import REFERENCES
from engram.core.checks import Fault
from engram.settings.errors import refusals
from engram.settings.experiment import validated
from engram.settings.fields import Float, Int, Settings, expect

_ENGINES: Final = ("vectorized", "sequential")
_ON_RAY: Final = (
    " (Ray runs what `engram app FOLDER` writes, or the apps of engram.make_server_app and "
    "engram.make_client_app, by `flwr run FOLDER`)"
)


def _engine(value: object) -> object:
    more = _ON_RAY if value == "ray" else ""
    expect(value in _ENGINES, f"{' or '.join(_ENGINES)}{more}")
    return value


def _path(value: object) -> object:
    expect(isinstance(value, str | PathLike), "a path")
    return value


def _texts(value: object) -> object:
    each = [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    expect(all(isinstance(one, str) for one in each), "text, or a list of texts")
    return each


def _tuned(value: object) -> object:
    """Returns (trials, seeds of each or None); None for no tuning."""
    if value is None or isinstance(value, bool):
        return (32, None) if value else None
    pair = [value, None] if isinstance(value, int) else value
    expect(isinstance(pair, list | tuple) and len(pair) == 2, "True, trials or (trials, seeds)")
    return pair


def _references(value: object) -> object:
    each = value.replace("none", "").split(",") if isinstance(value, str) else value
    names = [name.strip() for name in each if name] if isinstance(each, Collection) else [""]
    expect(set(names) <= REFERENCES.keys(), f"none, or some of {', '.join(REFERENCES)}")
    return names


_Path = Annotated[Path, BeforeValidator(_path)]
_Count = Annotated[Int, Field(ge=1, le=100_000)]


class Arguments(Settings):
    """Arguments of commands and functions, beside settings."""

    engine: Annotated[Literal["vectorized", "sequential"], BeforeValidator(_engine)] | None = None
    out: _Path | None = None
    resume: _Path | None = None
    run: _Path | None = None
    data: _Path | None = None
    progress: bool = Field(True, strict=True)
    seeds: Int = Field(3, ge=1, le=1000)
    trials: Int = Field(32, ge=1, le=100_000)
    tuned: Annotated[tuple[_Count, _Count | None] | None, BeforeValidator(_tuned)] = None
    minutes: Float | None = Field(None, ge=0)
    processes: Int | None = Field(None, ge=1)
    search: Annotated[list[str], BeforeValidator(_texts)] = Field(default_factory=list)
    ray: str | None = None
    references: Annotated[list[str], BeforeValidator(_references)] = Field([*REFERENCES])


def arguments(prefix: str = "", /, **given: Any) -> tuple[Arguments, list[Fault]]:
    """Returns checked arguments, and their faults.

    Args:
        prefix: What stands before names in the faults' texts: ``--`` on the command line.
        given: The arguments by name; ``out`` must be a new folder.
    """
    found, _, wrong = validated(Arguments, given, prefix)
    free = refusals(lambda: check_unused(found.out))
    return found, [*wrong, *free]
