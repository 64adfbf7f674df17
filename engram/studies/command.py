"""``engram reproduce``: each study's command, derived from the fields of its settings."""

import dataclasses
import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from engram.bandits.studies.settings import MetaBanSettings
from engram.cli.options import Json, Out, Ray
from engram.compare.comparison_folder import STUDY, read_study
from engram.core.checks import must
from engram.meta.studies.settings import FederatedSettings, OneShotSettings, SinewaveSettings
from engram.online.studies.settings import UniversalSettings, UniversalStreamSettings
from engram.settings.errors import Refused
from engram.studies.settings import flag_of, option_of
from engram.studies.study import Study, run_study
from engram.tables.studies.settings import (
    MolarBanditSettings,
    MolarRegressionSettings,
    MolarTableSettings,
)

STUDIES: Final = (
    Study("sinewave", SinewaveSettings, "engram.meta.studies.sinewave", "iterations"),
    Study("one-shot", OneShotSettings, "engram.meta.studies.one_shot", "iterations"),
    Study("federated", FederatedSettings, "engram.meta.studies.federated", "rounds"),
    Study("molar-regression", MolarRegressionSettings, "engram.tables.studies.regression", "steps"),
    Study("molar-bandit", MolarBanditSettings, "engram.tables.studies.bandit", "policies"),
    Study("molar-table", MolarTableSettings, "engram.tables.studies.table", "splits", whole=True),
    Study("meta-ban", MetaBanSettings, "engram.bandits.studies.study", "rounds"),
    Study("universal", UniversalSettings, "engram.online.studies.universal", "learners"),
    Study(
        "universal-stream",
        UniversalStreamSettings,
        "engram.online.studies.stream",
        "runs",
        whole=True,
    ),
)

_Processes = Annotated[
    int | None,
    typer.Option(min=1, help="Jobs that run at once; default: one for each core that may be used."),
]
_Resume = Annotated[
    str | None, typer.Option(metavar="RUN", help="Resume a study: its folder, or name in runs/.")
]
_COMMON: Final[dict[str, tuple[Any, Any]]] = {
    "processes": (_Processes, None),
    "ray": (Ray, None),
    "resume": (_Resume, None),
    "out": (Out, None),
    "as_json": (Json, False),
}

app = typer.Typer(name="reproduce", no_args_is_help=True, suggest_commands=False)  # click does


@app.callback()
def _reproduce() -> None:
    """Run a paper's experiment, and compare the results with the published ones."""


def command_of(study: Study) -> Callable[..., None]:
    """Returns a function with a study's settings as its signature, and so as command options."""

    def command(ctx: typer.Context, **given: Any) -> None:
        common = {name: given.pop(name) for name in _COMMON if name in given}
        named = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in given.items()
            if (source := ctx.get_parameter_source(name)) is None or source.name != "DEFAULT"
        }
        run_study(study, named, **common)

    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [_parameter(each) for each in dataclasses.fields(study.settings)]
    for name, (kind, default) in _COMMON.items():
        if not (study.whole and name in ("processes", "ray", "resume")):
            parameters.append(_keyword(name, kind, default))
    found: Any = command
    found.__signature__ = inspect.Signature([context, *parameters])
    found.__annotations__ = {each.name: each.annotation for each in (context, *parameters)}
    found.__doc__ = study.settings.__doc__
    return command


def show_study(folder: Path, as_json: bool) -> None:
    """Shows the results of a finished study, and draws its plots again.

    Raises:
        Refused: It is not finished, or not known here.
    """
    name = read_study(folder)
    study = next((each for each in STUDIES if each.name == name), None)
    if study is None:
        names = ", ".join(each.name for each in STUDIES)
        raise Refused(must(f"experiment in {folder / STUDY}", name, f"one of {names}"))
    if not (folder / "results.json").is_file():
        again = f"engram reproduce {name} --resume {folder}"
        raise Refused(f"{folder} is a study that is not finished: go on with {again}")
    run_study(study, {}, resume=str(folder), as_json=as_json)


def _parameter(of: dataclasses.Field[Any]) -> inspect.Parameter:
    told = option_of(of)
    default: Any = of.default
    more: dict[str, Any] = {"help": told.help, "metavar": told.metavar}
    kind: Any = of.type
    if typing.get_origin(kind) is tuple:
        kind = list[typing.get_args(kind)[0]] | None  # type: ignore[misc]
        default = list(default) or None
    if told.positional:
        return _keyword(of.name, Annotated[kind, typer.Argument(**more)], default)
    flags = told.flags or (f"--{flag_of(of)}",)
    return _keyword(of.name, Annotated[kind, typer.Option(*flags, **more)], default)


def _keyword(name: str, kind: Any, default: Any) -> inspect.Parameter:
    empty = inspect.Parameter.empty if default is dataclasses.MISSING else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=empty, annotation=kind)


for _study in STUDIES:
    app.command(_study.name)(command_of(_study))
