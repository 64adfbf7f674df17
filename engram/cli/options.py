"""Options that commands share, and the help of their settings."""

import json
from pathlib import Path
from typing import Annotated, Any, Final

import click
import typer
from rich.table import Table
from typer.core import TyperCommand

from engram.cli.console import out as console
from engram.runs.run_places import new_folder
from engram.settings.base import GROUPS
from engram.settings.fields import Settings, key_of, range_of, searched_range
from engram.studio.tracking.sending import TRACKERS


def argument(metavar: str, text: str) -> Any:
    """Returns an argument of a command, with its help."""
    return typer.Argument(metavar=metavar, help=text)


def option(
    metavar: str,
    text: str,
    *names: str,
    min: float | None = None,  # noqa: A002 - as typer has it
    max: float | None = None,  # noqa: A002 - likewise
) -> Any:
    """Returns an option of a command that takes a value, with its help; a name may be given."""
    return typer.Option(*names, metavar=metavar, help=text, min=min, max=max)


def flag(names: str, text: str) -> Any:
    """Returns an option of a command that takes no value, with its help."""
    return typer.Option(names, help=text)


SEE_SETTINGS: Final = "The settings are those of engram run: see engram run --help."


class WithSettings(TyperCommand):
    """A command with the shared settings at the end of its help, group by group."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the help, and a table of each group of settings."""
        super().format_help(ctx, formatter)
        console.print("Settings: --set KEY=VALUE, or a line KEY = VALUE of a --config file.")
        for group in GROUPS:
            title, _, _ = str(group.__doc__).partition(".")
            table = Table(title=title, title_justify="left")
            for heading in ("setting", "default", "meaning"):
                table.add_column(heading, no_wrap=heading != "meaning")
            for key, default, *_, meaning in settings_rows(group):
                table.add_row(key, default, meaning)
            console.print("", table)
        console.print("\nengram methods METHOD shows a method's own settings.")


def settings_rows(group: type[Settings]) -> list[tuple[str, str, str, str, str]]:
    """Returns key, default, range, range of a search ("" for none) and meaning of settings."""
    rows = []
    for name, field in group.model_fields.items():
        ranges = range_of(field), str(searched_range(field) or "")
        rows.append((key_of(name), json.dumps(field.default), *ranges, field.description or ""))
    return rows


Set = Annotated[
    list[str] | None, option("KEY=VALUE", "Override a setting; may be repeated.", "--set", "-s")
]
Config = Annotated[
    list[Path] | None, option("FILE", "Read settings from a TOML file.", "--config", "-c")
]
SchemaFile = Annotated[
    str | None, option("FILE", "A table's schema, as engram schema writes it.", "--schema")
]
Yes = Annotated[bool, flag("--yes", "Take what is proposed for uncertain columns of a table.")]
Out = Annotated[Path | None, option("DIR", "Folder of the results; default runs/NAME.")]
Resume = Annotated[str | None, option("RUN", "Resume a run: its folder, or its name in runs/.")]
Processes = Annotated[
    str | None,
    option("N", "Methods that are tuned at once; default: one for each core that may be used."),
]
Ray = Annotated[
    str | None,
    option(
        "ADDRESS", "Run jobs on a Ray cluster with Engram installed: HOST:PORT, auto, or local."
    ),
]
Referring = Annotated[
    str | None,
    option(
        "NAMES",
        "Models without a network to compare with: none, or some of constant,linear,pooled; "
        "default: all.",
        "--references",
    ),
]
OnRay = Annotated[
    str | None,
    option(
        "ADDRESS",
        "Train clients on a Ray cluster with Engram installed: HOST:PORT, auto, or local.",
        "--ray",
    ),
]
Track = Annotated[
    str | None, option("TRACKER", f"Send rounds, as they end, to {' or '.join(TRACKERS)}.")
]
Json = Annotated[bool, flag("--json", "End standard output with one line of JSON.")]
RunName = Annotated[str, argument("RUN", "Its folder, or its name in runs/.")]
Runs = Annotated[Path, argument("[FOLDER]", "Default: runs.")]
Server = Annotated[Path, argument("SERVER_FOLDER", "The folder `server` of a federation.")]
Port = Annotated[int, option("PORT", "Serve /metrics and /healthz on this machine alone.", min=0)]
Methods = Annotated[
    list[str] | None, argument("[METHOD]...", "Default: some that are often compared.")
]
Seeds = Annotated[str | None, option("N", "Runs of each, from `seed` upwards; default 5.")]
Format = Annotated[str, option("FORMAT", "safetensors, onnx or peft (adapters).", "--format")]
JsonInstead = Annotated[bool, flag("--json", "Print JSON instead.")]
Site = Annotated[Path, argument("FOLDER", "A client's folder, `client-N` of a federation.")]
State = Annotated[
    Path | None, option("DIR", "Where the node keeps its memories; default FOLDER/state.")
]
Policy = Annotated[
    Path | None, option("FILE", "The node's policy; default FOLDER/policy.toml, if there.")
]


def folder_of_command(named: Path | None, default: str) -> Path:
    """Returns an unused folder, locked until the command ends: see ``new_folder``."""
    return click.get_current_context().with_resource(new_folder(named, default))
