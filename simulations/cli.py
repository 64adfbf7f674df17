"""The `engram` command: what its subcommands are called, and where each is written.

A subcommand's module is imported when the subcommand is called, and imports what it needs to check
its arguments; what does the work is imported by the function's body. So help and refusals take
tenths of a second. To add a command, write its function in one of these modules (or a new one) and
name it here.
"""

from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, Final

import click
import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from federation.plugins import add_plugins, load_plugins, project_plugins

__all__ = ["COMMANDS", "app"]

_RUN, _SERVER, _CLIENT = "simulations.run_cli", "server.cli", "client.cli"
_MODELS = "simulations.models_cli"

COMMANDS: Final = {
    "run": (_RUN, "Run one experiment, in this process or on a deployed federation."),
    "compare": (
        _RUN,
        "Run methods and references side by side, over several seeds.",
    ),
    "tune": (
        "simulations.tune_cli",
        "Find settings of methods that train networks, on rows held out for validation.",
    ),
    "show": (_RUN, "Show what a run, or a comparison, has found so far, and draw its plots again."),
    "export": (_MODELS, "Write a model of a run into a folder: a client's own, or the common one."),
    "adapt": (_MODELS, "Make a model for a client that never took part, from a few of its rows."),
    "predict": (_MODELS, "Predict rows by an exported model, into a CSV file."),
    "data": (_RUN, "Show which client holds which rows: a table, and a picture."),
    "new": (
        "simulations.new_cli",
        "Make a project: a network, data and a method of your own, which all engines run.",
    ),
    "methods": ("simulations.methods_cli", "List the methods, or show one and its settings."),
    "reproduce": (
        "simulations.studies.command",
        "Run a paper's experiment, and compare the results with the published ones.",
    ),
    "federation": (
        "simulations.deployed_cli",
        "Run an experiment on a federation of processes on this machine, over gRPC.",
    ),
    "app": (
        "simulations.deployed_cli",
        "Write the app that `flwr run FOLDER` runs, with the settings of all methods.",
    ),
    "init-federation": (
        _SERVER,
        "Make a federation: its certificates, and a folder for the server and for each client.",
    ),
    "superlink": (
        _SERVER,
        "Start a federation's SuperLink, to which its clients and its users connect.",
    ),
    "register": (
        _SERVER,
        "Register all clients' keys with the running SuperLink; known ones stay registered.",
    ),
    "unregister": (
        _SERVER,
        "Remove a client's key from the running SuperLink, which refuses it from now on, for good.",
    ),
    "status": (_SERVER, "Show who is in a federation, or who took part in a run, and its cost."),
    "node": (_CLIENT, "Serve a federation as one of its clients, until it is stopped."),
    "memory": (_CLIENT, "Manage the memories on a node's disk."),
}
"""By name, the module of a subcommand, whose ``app`` has it, and the first line of its help."""


class _Lazy(TyperGroup):
    """A group that knows its commands by name and first line, and imports the one called."""

    def __init__(self, **attributes: Any) -> None:
        lines = {name: TyperCommand(name, help=line) for name, (_, line) in COMMANDS.items()}
        super().__init__(**attributes | {"commands": lines})

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command that is called, and imports it."""
        name, _, rest = super().resolve_command(ctx, args)
        module, _ = COMMANDS[str(name)]
        found = get_group(import_module(module).app)
        return name, found.commands.get(str(name), found), rest


def _print_versions(wanted: bool) -> None:
    if wanted:
        others = ", ".join(f"{name} {version(name)}" for name in ("flwr", "torch"))
        print(f"engram {version('engram')} ({others})")
        raise typer.Exit


app = typer.Typer(
    cls=_Lazy,
    no_args_is_help=True,
    add_completion=False,
    suggest_commands=False,  # click does
    pretty_exceptions_enable=False,
)


@app.callback()
def _engram(
    context: typer.Context,
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Import a module that registers methods of your own; may be repeated. Also "
            "imported: what tool.engram.plugin of the pyproject.toml in this folder names.",
        ),
    ] = None,
    versions: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_versions,
            is_eager=True,
            help="Print the version, and exit.",
        ),
    ] = False,
) -> None:
    """Personalized federated learning: every client gets its own model, and remembers it."""
    del versions
    add_plugins(",".join([project_plugins(), *(plugin or ())]))
    module, _ = COMMANDS[str(context.invoked_subcommand)]
    if module not in (_SERVER, _CLIENT):  # which leave it to the processes that they start
        load_plugins()
