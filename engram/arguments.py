"""Arguments and settings as commands and functions take them."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from engram.cli import work
from engram.core.checks import Fault
from engram.runs.run_places import check_unused
from engram.settings.errors import Refused, brief, refusals, together
from engram.settings.experiment import FIRST, Experiment, Impossible, read_by, validated
from engram.settings.fields import Float, Int, Settings, expect
from engram.settings.plugins import project_settings
from engram.settings.settings_files import read_settings

REFERENCES: Final = {
    "constant": "own constant",
    "linear": "own linear model",
    "pooled": "pooled linear model",
}
"""Models beside which a comparison puts its methods, in tables, by what one asks for them by."""

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


def overrides_of(
    config: Sequence[Path] | None,
    sets: Sequence[str] | None,
    schema: str | None = None,
    yes: bool = False,
) -> dict[str, Any]:
    """Returns the settings of configuration files and options; later ones override earlier ones."""
    overrides: dict[str, Any] = {}
    for path in config or ():
        overrides |= read_settings(path)
    for text in sets or ():
        key, equals, value = text.partition("=")
        if not (key.strip() and equals):
            raise Refused(f"--set must be KEY=VALUE, got {brief(text)}")
        quoted = re.fullmatch(r"(?s)(['\"])(.*)\1", value := value.strip())
        overrides[key.strip()] = quoted[2] if quoted else value
    overrides |= {} if schema is None else {"schema": schema}
    return overrides | ({"strict": False} if yes else {})


def in_project(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings with those of the project in the current folder, where they say nothing.

    What the chosen method does not read is left out. Clients are those that rows name, where they
    name some, unless settings say otherwise.
    """
    found = project_settings()
    method = str(overrides.get("method", found.get("method", FIRST)))
    found = read_by(method, found) | dict(overrides)
    return work.follow_rows(found) if "dataset" in found else found


def read_experiment(config: Mapping[str, Any]) -> Experiment:
    """Reads the settings of a run in this process.

    Raises:
        Refused: One line that says everything that is wrong with the settings; and with the data,
            as far as these do not depend on impossible ones.
    """
    try:
        return Experiment.from_config(config)
    except Impossible as error:
        if error.possible is None:
            raise
        opening = work.Opening(error.possible, work.RamStore())
        raise together(error, lambda: work.host_of(opening), error.is_apart) from error


def refuse_beside_resume(work: str, given: Iterable[object], instead: str = "nothing else") -> None:
    """Refuses options beside ``--resume``, which goes on with a piece of work as begun."""
    if any(given):
        raise Refused(f"--resume goes on with a {work} as it was begun: give {instead}")


def refuse_keys(overrides: Mapping[str, Any], instead: Mapping[str, str]) -> None:
    """Refuses settings for which a command has options."""
    for key in overrides.keys() & instead.keys():
        raise Refused(f"{key} is not a setting of this command: use {instead[key]}")
