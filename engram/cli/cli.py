"""The `engram` command: its subcommands by name, and the module of each.

A subcommand's module is imported when it is called. What loads torch or matplotlib is looked up in
``engram.cli.work``, so that help and refusals take tenths of a second. To add a command, write its
function in one of these modules (or a new one), and name it here.
"""

import errno
import logging
import os
import signal
import sys
import time
import warnings
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, Final, NamedTuple

import click
import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from engram.cli import work
from engram.cli.console import err
from engram.core.machine import cores
from engram.settings.errors import EngramError, Refused, one_line
from engram.settings.plugins import add_plugins, load_plugins, project_plugins

_RESIDENT: Final = {"node", "superlink"}  # Docker restarts them, whatever their exit status
_PAUSE: Final = "ENGRAM_REFUSAL_PAUSE"  # whole seconds that they wait before exiting; in the image
_PROCESSES: Final = {f"engram.cli.{name}_cli" for name in ("superlink", "node", "site")}


class Command(NamedTuple):
    """A subcommand.

    Attributes:
        module: Its module, which has it in ``app``.
        line: First line of its help.
        first, second: Examples that its help ends with; {0} and {1} stand for methods.
    """

    module: str
    line: str
    first: str
    second: str


GROUPS: Final[dict[str, dict[str, Command]]] = {
    "Train": {
        "run": Command(
            "engram.cli.run_cli",
            "Run one experiment, in this process or on a deployed federation.",
            "engram run {0} --set num-rounds=50",
            "engram run --resume NAME",
        ),
        "compare": Command(
            "engram.cli.run_cli",
            "Run methods and baselines side by side, over several seeds.",
            "engram compare {0} {1} --seeds 5",
            "engram compare {0} {1} --tuned --trials 16",
        ),
        "tune": Command(
            "engram.cli.tune_cli",
            "Find settings of methods that train networks, on rows held out for validation.",
            "engram tune {0} --trials 16 --seeds 3",
            "engram tune {0} --search adapt-lr=0.01..1:log --minutes 5",
        ),
        "benchmark": Command(
            "engram.cli.tune_cli",
            "Tune methods alike on several federations, compare them there, and rank them.",
            "engram benchmark --list",
            "engram benchmark {0} {1} --on digits --on sensors --seeds 2",
        ),
        "reproduce": Command(
            "engram.studies.command",
            "Run a paper's experiment, and compare the results with the published ones.",
            "engram reproduce sinewave --hessian first-order",
            "engram reproduce molar-table patients.csv --target cost --task hospital",
        ),
    },
    "Look": {
        "runs": Command(
            "engram.cli.show_cli",
            "List the runs, comparisons and searches of a folder, the newest first.",
            "engram runs",
            "engram runs results --json",
        ),
        "show": Command(
            "engram.cli.show_cli",
            "Show the results of a run, comparison, search or study, and draw its plots.",
            "engram show NAME --latex",
            "engram show NAME --format pdf --width one",
        ),
        "data": Command(
            "engram.cli.run_cli",
            "Show which client holds which rows: a table, and a picture.",
            "engram data --set partition=dirichlet --set dirichlet-alpha=0.3",
            "engram data --set dataset=npz:images.npz --out rows.png",
        ),
        "report": Command(
            "engram.cli.show_cli",
            "Write a page about a run or comparison: an HTML file with interactive figures.",
            "engram report NAME",
            "engram report NAME --html results.html",
        ),
        "board": Command(
            "engram.cli.watch_cli",
            "Serve a web page over a folder of runs, and over a live federation.",
            "engram board",
            "engram board results --federation fed/server",
        ),
        "track": Command(
            "engram.cli.show_cli",
            "Send the record of a run, or of a comparison, to TensorBoard, MLflow or W&B.",
            "engram track NAME --to tensorboard",
            "engram track NAME --to mlflow",
        ),
        "audit": Command(
            "engram.cli.show_cli",
            "Attack a run on its own clients' rows: who could reconstruct or recognize them?",
            "engram audit NAME",
            "engram audit NAME --clients 5 --federations 16",
        ),
        "methods": Command(
            "engram.cli.show_cli",
            "List the methods, or show one and its settings.",
            "engram methods",
            "engram methods {0}",
        ),
    },
    "Take home": {
        "export": Command(
            "engram.cli.models_cli",
            "Write a model of a run into a folder: a client's own, or the common one.",
            "engram export NAME --client 3 --out park-model",
            "engram export NAME --common --format onnx",
        ),
        "adapt": Command(
            "engram.cli.models_cli",
            "Make a model for a client that never took part, from a few of its rows.",
            "engram adapt NAME --data hill.csv --out hill-model",
            "engram adapt NAME --data hill.npz --format onnx",
        ),
        "predict": Command(
            "engram.cli.models_cli",
            "Predict rows by an exported model, into a CSV file.",
            "engram predict park-model rows.csv",
            "engram predict park-model rows.npz --out classes.csv",
        ),
        "evaluate": Command(
            "engram.cli.models_cli",
            "Score exported models at all sites of a federation, on their own test rows.",
            "engram evaluate client-3-model --federation fed/server",
            "engram evaluate north-model south-model --federation fed/server --json",
        ),
    },
    "Between machines": {
        "federation": Command(
            "engram.cli.deployed_cli",
            "Run an experiment on a federation of processes on this machine, over gRPC.",
            "engram federation --clients 3 --set num-rounds=20",
            "engram federation --clients 4 --set method={0}",
        ),
        "init-federation": Command(
            "engram.cli.superlink_cli",
            "Make a federation: certificates, and a folder for the server and each client.",
            "engram init-federation fed --clients 3 --host fl.example.org",
            "engram init-federation north --join invitation",
        ),
        "superlink": Command(
            "engram.cli.superlink_cli",
            "Start a federation's SuperLink, to which its clients and its users connect.",
            "engram superlink fed/server",
            "engram superlink fed/server --fleet 0.0.0.0:9092",
        ),
        "register": Command(
            "engram.cli.superlink_cli",
            "Register all clients' keys with the running SuperLink; known ones stay.",
            "engram register fed/server",
            "engram register fed/server north/request",
        ),
        "remove": Command(
            "engram.cli.superlink_cli",
            "Remove a client from a federation, or take its invitation back.",
            "engram remove fed/server client-1",
            "engram remove fed/server client-1 --control 127.0.0.1:8000",
        ),
        "withdraw": Command(
            "engram.cli.withdraw_cli",
            "Name the models with a leaving client's updates, and retrain a run without it.",
            "engram withdraw NAME 3",
            "engram withdraw NAME client-1 --federation fed/server --out runs/without-1",
        ),
        "renew": Command(
            "engram.cli.superlink_cli",
            "Renew a server's certificate, address, key or authority; runs go on.",
            "engram renew fed/server",
            "engram renew fed/server --address fl.example.org:9092",
        ),
        "stop": Command(
            "engram.cli.superlink_cli",
            "Stop a run on a federation after its current round; it can be resumed.",
            "engram stop fed/server",
            "engram stop fed/server --control 127.0.0.1:8000",
        ),
        "status": Command(
            "engram.cli.watch_cli",
            "Show the members of a federation, the clients of a run, or a node's work.",
            "engram status fed/server",
            "engram status fed/client-0 --json",
        ),
        "schema": Command(
            "engram.cli.schema_cli",
            "Have sites agree on their tables' columns, or describe a table.",
            "engram schema fed/server --target outcome",
            "engram schema fed/server --target outcome --set missing=median",
        ),
        "statistics": Command(
            "engram.cli.schema_cli",
            "Show columns of all sites' tables: rows, missing values, means and quantiles.",
            "engram statistics fed/server",
            "engram statistics fed/server --csv",
        ),
        "doctor": Command(
            "engram.sites.doctor",
            "Check a server's or a client's folder, with a remedy for each fault.",
            "engram doctor fed/server",
            "engram doctor fed/client-0 --json",
        ),
        "node": Command(
            "engram.cli.node_cli",
            "Serve a federation as one of its clients, or several, until it is stopped.",
            "engram node fed/client-0",
            "engram node fed/client-0 --data rows.npz",
        ),
        "approve": Command(
            "engram.cli.site_cli",
            "Approve or refuse a training that waits for its site's answer.",
            "engram approve fed/client-0",
            "engram approve fed/client-0 REQUEST --refuse",
        ),
        "policy": Command(
            "engram.cli.site_cli",
            "Show a site's rules in force, and accept those that wait for its answer.",
            "engram policy fed/client-0",
            "engram policy fed/client-0 --accept",
        ),
        "log": Command(
            "engram.cli.site_cli",
            "Show a node's work, round by round, and check that its log is whole.",
            "engram log fed/client-0",
            "engram log fed/client-0 --json",
        ),
        "ledger": Command(
            "engram.cli.site_cli",
            "Show the privacy budget that a node's answers have spent of its site's.",
            "engram ledger fed/client-0",
            "engram ledger fed/client-0 --json",
        ),
        "leave": Command(
            "engram.cli.node_cli",
            "Leave a federation: this client's key is refused, and no run counts on it.",
            "engram leave fed/client-2",
            "engram leave fed/client-2 --state /var/lib/engram",
        ),
        "memory": Command(
            "engram.cli.node_cli",
            "Manage the memories on a node's disk.",
            "engram memory list fed/client-0",
            "engram memory forget fed/client-0",
        ),
    },
    "Your own": {
        "new": Command(
            "engram.cli.new_cli",
            "Make a project of your own: a network, data and a method, for all engines.",
            "engram new hospitals",
            "cd hospitals && engram run",
        ),
        "app": Command(
            "engram.cli.new_cli",
            "Write the app that `flwr run FOLDER` runs.",
            "engram app flower-app",
            "flwr run flower-app",
        ),
    },
}
"""The subcommands by name, under the headings that ``engram --help`` gives them."""

LOOKING: Final = {
    *("runs", "show", "report", "board", "track", "methods", "predict", "status", "doctor"),
    *("renew", "stop", "approve", "policy", "log", "ledger", "leave", "memory"),
}
"""Commands that run no code that the current folder names: it may have come from elsewhere."""

COMMANDS: Final = {name: one for group in GROUPS.values() for name, one in group.items()}


def examples_of(command: Command) -> list[str]:
    """Returns a command's examples, with names of methods."""
    names = work.family("local", compared=True)
    return [example.format(*names) for example in (command.first, command.second)]


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
    # Commands of a federation leave plug-ins to the processes that they start.
    if COMMANDS[command].module not in _PROCESSES and command != "status":
        load_plugins()


def call() -> None:
    """Runs the command that the arguments name; ends with its status, and in one line if it fails.

    Raises:
        SystemExit: It failed, or Ctrl-C was pressed.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(cores()))  # OpenMP knows affinities, but no quotas
    try:
        _log_to_stderr()
        if status := app(standalone_mode=False):  # typer's status after Ctrl-C
            raise SystemExit(status)
    except (KeyboardInterrupt, click.exceptions.Abort):
        raise SystemExit(130) from None
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        raise SystemExit(2) from None
    except click.ClickException as error:
        told = _without(error) if isinstance(error, click.NoSuchOption) else error.format_message()
        _end(one_line(told, longest=2000), error.exit_code)
    except EngramError as error:
        _end(str(error), 2 if isinstance(error, Refused) else 1)
    except MemoryError:
        _end("memory ran out: use fewer rows, a smaller memory-budget, or a larger machine", 1)
    except OSError as error:
        named = error.errno == errno.ENAMETOOLONG  # the user's fault: our own names are short
        where = f"{error.filename or 'output'}: {error.strerror}" if error.strerror else str(error)
        _end(one_line(where), 2 if named else 1)


def _without(error: click.NoSuchOption) -> str:
    settings = {key.rpartition(".")[2] for key in work.default_config()}
    takes = error.ctx is not None and any("--set" in each.opts for each in error.ctx.command.params)
    found = work.called_here(work.key_of(error.option_name.lstrip("-")))
    if takes and found in settings:
        return f"{error.message} Settings are given by --set: did you mean --set {found}=VALUE?"
    return error.format_message()


def _end(message: str, status: int) -> None:
    print(f"engram: {message}", file=sys.stderr)
    pause = os.environ.get(_PAUSE, "")
    if status == 2 and _RESIDENT.intersection(sys.argv[1:2]) and pause.isdecimal():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda signum, frame: os._exit(status))
        print(f"engram: it would be refused again; ending in {pause} s", file=sys.stderr)
        time.sleep(int(pause))
    raise SystemExit(status) from None


def _log_to_stderr() -> None:
    """Prints the platform's warnings plainly; Flower's own handler shows Flower's.

    Where semaphores are missing, the command does without them, and says so itself.
    """
    ours = logging.getLogger("flwr.engram")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("engram: %(message)s"))
    ours.handlers = [handler]
    ours.propagate = False
    ours.setLevel(logging.WARNING)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*joblib will operate in serial mode")
    warnings.showwarning = _show_warning


def _show_warning(
    message: Warning | str, category: type[Warning], *_: object, **__: object
) -> None:
    """Prints a library's warning as one line, without its place in the library's source."""
    text = " ".join(f"{category.__name__}: {message}".split())
    print(f"engram: {one_line(text)}", file=sys.stderr)
