"""The `engram` command: what its subcommands are called, and where each is written.

A subcommand's module is imported when the subcommand is called, and imports what it needs to check
its arguments; what does the work is imported by the function's body. So help and refusals take
tenths of a second. To add a command, write its function in one of these modules (or a new one) and
name it here.
"""

from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, Final, NamedTuple

import click
import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from engram.cli.console import err
from engram.settings.errors import one_line
from engram.settings.plugins import add_plugins, load_plugins, project_plugins

__all__ = ["COMMANDS", "GROUPS", "LOOKING", "app", "examples_of"]

_RUN, _SERVER, _CLIENT = "engram.cli.run_cli", "engram.cli.superlink_cli", "engram.cli.node_cli"
_SITE, _STATUS = "engram.cli.site_cli", "engram.cli.status_cli"
_MODELS = "engram.cli.models_cli"


class Command(NamedTuple):
    """A subcommand.

    Attributes:
        module: What has it, in its ``app``.
        line: The first line of its help.
        examples: Commands that its help ends with; {0} and {1} stand for methods.
    """

    module: str
    line: str
    examples: tuple[str, ...]


GROUPS: Final[dict[str, dict[str, Command]]] = {
    "Train": {
        "run": Command(
            _RUN,
            "Run one experiment, in this process or on a deployed federation.",
            ("engram run {0} --set num-rounds=50", "engram run --resume NAME"),
        ),
        "compare": Command(
            _RUN,
            "Run methods and baselines side by side, over several seeds.",
            (
                "engram compare {0} {1} --seeds 5",
                "engram compare {0} {1} --tuned --trials 16",
            ),
        ),
        "tune": Command(
            "engram.cli.tune_cli",
            "Find settings of methods that train networks, on rows held out for validation.",
            (
                "engram tune {0} --trials 16 --seeds 3",
                "engram tune {0} --search adapt-lr=0.01..1:log --minutes 5",
            ),
        ),
        "benchmark": Command(
            "engram.cli.benchmark_cli",
            "Tune methods alike on several federations, compare them there, and rank them.",
            (
                "engram benchmark --list",
                "engram benchmark {0} {1} --on digits --on sensors --seeds 2",
            ),
        ),
        "reproduce": Command(
            "engram.studies.command",
            "Run a paper's experiment, and compare the results with the published ones.",
            (
                "engram reproduce sinewave --hessian first-order",
                "engram reproduce molar-table patients.csv --target cost --task hospital",
            ),
        ),
    },
    "Look": {
        "runs": Command(
            "engram.cli.runs_cli",
            "List the runs, comparisons and searches of a folder, the newest first.",
            ("engram runs", "engram runs results --json"),
        ),
        "show": Command(
            "engram.cli.show_cli",
            "Show what a run, comparison, search or study has found, and draw its plots.",
            (
                "engram show NAME --latex",
                "engram show NAME --format pdf --width one",
            ),
        ),
        "data": Command(
            _RUN,
            "Show which client holds which rows: a table, and a picture.",
            (
                "engram data --set partition=dirichlet --set dirichlet-alpha=0.3",
                "engram data --set dataset=npz:images.npz --out rows.png",
            ),
        ),
        "report": Command(
            "engram.cli.report_cli",
            "Write a page about a run or comparison: an HTML file with interactive figures.",
            ("engram report NAME", "engram report NAME --html results.html"),
        ),
        "board": Command(
            "engram.cli.board_cli",
            "Serve a web page over a folder of runs, and over a live federation.",
            ("engram board", "engram board results --federation fed/server"),
        ),
        "track": Command(
            "engram.cli.track_cli",
            "Send what a run, or a comparison, has recorded to TensorBoard, MLflow or W&B.",
            ("engram track NAME --to tensorboard", "engram track NAME --to mlflow"),
        ),
        "audit": Command(
            "engram.cli.audit_cli",
            "Attack a run on its own clients' rows: who could reconstruct or recognize them?",
            ("engram audit NAME", "engram audit NAME --clients 5 --federations 16"),
        ),
        "methods": Command(
            "engram.cli.methods_cli",
            "List the methods, or show one and its settings.",
            ("engram methods", "engram methods {0}"),
        ),
    },
    "Take home": {
        "export": Command(
            _MODELS,
            "Write a model of a run into a folder: a client's own, or the common one.",
            (
                "engram export NAME --client 3 --out park-model",
                "engram export NAME --common --format onnx",
            ),
        ),
        "adapt": Command(
            _MODELS,
            "Make a model for a client that never took part, from a few of its rows.",
            (
                "engram adapt NAME --data hill.csv --out hill-model",
                "engram adapt NAME --data hill.npz --format onnx",
            ),
        ),
        "predict": Command(
            _MODELS,
            "Predict rows by an exported model, into a CSV file.",
            (
                "engram predict park-model rows.csv",
                "engram predict park-model rows.npz --out classes.csv",
            ),
        ),
        "evaluate": Command(
            "engram.cli.models_cli",
            "Score exported models at all sites of a federation, on their own test rows.",
            (
                "engram evaluate client-3-model --federation fed/server",
                "engram evaluate north-model south-model --federation fed/server --json",
            ),
        ),
    },
    "Between machines": {
        "federation": Command(
            "engram.cli.deployed_cli",
            "Run an experiment on a federation of processes on this machine, over gRPC.",
            (
                "engram federation --clients 3 --set num-rounds=20",
                "engram federation --clients 4 --set method={0}",
            ),
        ),
        "init-federation": Command(
            _SERVER,
            "Make a federation: certificates, and a folder for the server and each client.",
            (
                "engram init-federation fed --clients 3 --host fl.example.org",
                "engram init-federation north --join invitation",
            ),
        ),
        "superlink": Command(
            _SERVER,
            "Start a federation's SuperLink, to which its clients and its users connect.",
            ("engram superlink fed/server", "engram superlink fed/server --fleet 0.0.0.0:9092"),
        ),
        "register": Command(
            _SERVER,
            "Register all clients' keys with the running SuperLink; known ones stay.",
            ("engram register fed/server", "engram register fed/server north/request"),
        ),
        "remove": Command(
            _SERVER,
            "Remove a client from a federation, or take its invitation back.",
            (
                "engram remove fed/server client-1",
                "engram remove fed/server client-1 --control 127.0.0.1:8000",
            ),
        ),
        "withdraw": Command(
            "engram.cli.withdraw_cli",
            "Name what has learned from a client that leaves, and retrain a run without it.",
            (
                "engram withdraw NAME 3",
                "engram withdraw NAME client-1 --federation fed/server --out runs/without-1",
            ),
        ),
        "renew": Command(
            _SERVER,
            "Renew a server's certificate, address, key or authority; what runs goes on.",
            ("engram renew fed/server", "engram renew fed/server --address fl.example.org:9092"),
        ),
        "stop": Command(
            _SERVER,
            "Stop a run on a federation after its current round; it can be resumed.",
            ("engram stop fed/server", "engram stop fed/server --control 127.0.0.1:8000"),
        ),
        "status": Command(
            _STATUS,
            "Show who is in a federation or took part in a run, or what a node does.",
            ("engram status fed/server", "engram status fed/client-0 --json"),
        ),
        "schema": Command(
            "engram.cli.schema_cli",
            "Have sites agree on their tables' columns, or describe a table.",
            (
                "engram schema fed/server --target outcome",
                "engram schema fed/server --target outcome --set 'missing-values=?'",
            ),
        ),
        "statistics": Command(
            "engram.cli.schema_cli",
            "Show columns of all sites' tables: rows, missing values, means and quantiles.",
            ("engram statistics fed/server", "engram statistics fed/server --csv"),
        ),
        "doctor": Command(
            "engram.sites.doctor",
            "Look over a server's or a client's folder, and say what to do.",
            ("engram doctor fed/server", "engram doctor fed/client-0 --json"),
        ),
        "node": Command(
            _CLIENT,
            "Serve a federation as one of its clients, or several, until it is stopped.",
            ("engram node fed/client-0", "engram node fed/client-0 --data rows.npz"),
        ),
        "approve": Command(
            _SITE,
            "Approve or refuse a training that waits for its site's answer.",
            ("engram approve fed/client-0", "engram approve fed/client-0 REQUEST --refuse"),
        ),
        "policy": Command(
            _SITE,
            "Show a site's rules in force, and accept those that wait for its answer.",
            ("engram policy fed/client-0", "engram policy fed/client-0 --accept"),
        ),
        "log": Command(
            _SITE,
            "Show what a node has done, round by round, and check that its log is whole.",
            ("engram log fed/client-0", "engram log fed/client-0 --json"),
        ),
        "ledger": Command(
            "engram.cli.ledger_cli",
            "Show what a node's answers have spent of its site's privacy budget.",
            ("engram ledger fed/client-0", "engram ledger fed/client-0 --json"),
        ),
        "leave": Command(
            _CLIENT,
            "Leave a federation: this client's key is refused, and no run counts on it.",
            ("engram leave fed/client-2", "engram leave fed/client-2 --state /var/lib/engram"),
        ),
        "memory": Command(
            _CLIENT,
            "Manage the memories on a node's disk.",
            ("engram memory list fed/client-0", "engram memory forget fed/client-0"),
        ),
    },
    "Your own": {
        "new": Command(
            "engram.cli.new_cli",
            "Make a project of your own: a network, data and a method, for all engines.",
            ("engram new hospitals", "cd hospitals && engram run"),
        ),
        "app": Command(
            "engram.cli.deployed_cli",
            "Write the app that `flwr run FOLDER` runs, with the settings of all methods.",
            ("engram app flower-app", "flwr run flower-app"),
        ),
    },
}
"""The subcommands by name, under the headings that ``engram --help`` gives them."""

LOOKING: Final = frozenset(
    {
        "runs",
        "show",
        "report",
        "board",
        "track",
        "methods",
        "predict",
        "status",
        "renew",
        "stop",
        "doctor",
        "approve",
        "policy",
        "log",
        "ledger",
        "leave",
        "memory",
    }
)
"""Commands that run no code that the current folder names: it may have come from elsewhere."""

COMMANDS: Final = {name: one for group in GROUPS.values() for name, one in group.items()}


def examples_of(command: Command) -> list[str]:
    """Returns a command's examples, with names of methods."""
    from engram.settings.families import family  # noqa: PLC0415 - not needed by every command

    names = family("local", compared=True)
    return [example.format(*names) for example in command.examples]


class _Lazy(TyperGroup):
    """A group that knows its commands by name and first line, and imports the one called."""

    def __init__(self, **attributes: Any) -> None:
        lines = {
            name: TyperCommand(name, help=one.line, rich_help_panel=title)
            for title, group in GROUPS.items()
            for name, one in group.items()
        }
        super().__init__(**attributes | {"commands": lines})

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command that is called, and imports it."""
        name, _, rest = super().resolve_command(ctx, args)
        one = COMMANDS[str(name)]
        group = get_group(import_module(one.module).app)
        command = group.commands.get(str(name), group)
        more = [command.epilog] if command.epilog else []
        command.epilog = "\n\n".join(["Examples:", *examples_of(one), *more])
        return name, command, rest


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
            help="Import a module of methods, as tool.engram.plugin names them; repeatable.",
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
    command = str(context.invoked_subcommand)
    if command not in LOOKING and (own := project_plugins()):
        add_plugins(own)
        said = f"engram: the pyproject.toml in this folder has plug-ins loaded: {one_line(own)}"
        err.print(said, soft_wrap=True)
    add_plugins(",".join(plugin or ()))
    module = COMMANDS[command].module
    if module not in (
        _SERVER,
        _CLIENT,
        _SITE,
        _STATUS,
    ):  # which leave it to the processes that they start
        load_plugins()
