"""The `engram` command: the modules of its subcommands, and their examples.

A subcommand's module is imported when it is called. What loads torch or matplotlib is looked up in
``engram.cli.work``, so that help and refusals take tenths of a second. To add a command, write its
function in one of these modules (or a new one), and name it here, with two examples.
"""

import ast
import errno
import logging
import os
import signal
import sys
import time
import warnings
from functools import cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final

import click
import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from engram.cli import work
from engram.cli.console import err
from engram.core.machine import cores
from engram.settings.errors import EngramError, one_line
from engram.settings.plugins import add_plugins, load_plugins, project_plugins

_RESIDENT: Final = {"node", "superlink"}  # Docker restarts them, whatever their exit status
_PAUSE: Final = "ENGRAM_REFUSAL_PAUSE"  # whole seconds that they wait before exiting; in the image
_PROCESSES: Final = {f"engram.cli.{name}_cli" for name in ("superlink", "node", "site")}


GROUPS: Final = {
    "Train": "run compare tune benchmark reproduce",
    "Look": "runs show data report board track audit methods",
    "Take home": "export adapt predict evaluate",
    "Between machines": "federation init-federation superlink register remove withdraw renew stop "
    "status schema statistics doctor node approve policy log ledger release leave memory",
    "Your own": "new app",
}
"""Subcommands, under the headings that ``engram --help`` gives them."""

_MODULES: Final = {
    "engram.cli.run_cli": "run compare data",
    "engram.cli.tune_cli": "tune benchmark",
    "engram.studies.command": "reproduce",
    "engram.cli.show_cli": "runs show report track audit methods",
    "engram.cli.watch_cli": "board status",
    "engram.cli.models_cli": "export adapt predict evaluate",
    "engram.cli.deployed_cli": "federation",
    "engram.cli.superlink_cli": "init-federation superlink register remove renew stop",
    "engram.cli.withdraw_cli": "withdraw",
    "engram.cli.schema_cli": "schema statistics",
    "engram.sites.doctor": "doctor",
    "engram.sites.release.command": "release",
    "engram.cli.node_cli": "node leave memory",
    "engram.cli.site_cli": "approve policy log ledger",
    "engram.cli.new_cli": "new app",
}
COMMANDS: Final = {name: one for one, names in _MODULES.items() for name in names.split()}

LOOKING: Final = {
    *("runs", "show", "report", "board", "track", "methods", "predict", "status", "doctor"),
    *("renew", "stop", "approve", "policy", "log", "ledger", "release", "leave", "memory"),
}
"""Commands that run no code that the current folder names: it may have come from elsewhere."""


_EXAMPLES: Final = """\
engram run {0} --set num-rounds=50
engram run --resume NAME
engram compare {0} {1} --seeds 5
engram compare {0} {1} --tuned --trials 16
engram tune {0} --trials 16 --seeds 3
engram tune {0} --search adapt-lr=0.01..1:log --minutes 5
engram benchmark --list
engram benchmark {0} {1} --on digits --on sensors --seeds 2
engram reproduce sinewave --hessian first-order
engram reproduce molar-table patients.csv --target cost --task hospital
engram runs
engram runs results --json
engram show NAME --latex
engram show NAME --format pdf --width one
engram data --set partition=dirichlet --set dirichlet-alpha=0.3
engram data --set dataset=npz:images.npz --out rows.png
engram report NAME
engram report NAME --html results.html
engram board
engram board results --federation fed/server
engram track NAME --to tensorboard
engram track NAME --to mlflow
engram audit NAME
engram audit NAME --clients 5 --federations 16
engram methods
engram methods {0}
engram export NAME --client 3 --out park-model
engram export NAME --common --format onnx
engram adapt NAME --data hill.csv --out hill-model
engram adapt NAME --data hill.npz --format onnx
engram predict park-model rows.csv
engram predict park-model rows.npz --out classes.csv
engram evaluate client-3-model --federation fed/server
engram evaluate north-model south-model --federation fed/server --json
engram federation --clients 3 --set num-rounds=20
engram federation --clients 4 --set method={0}
engram init-federation fed --clients 3 --host fl.example.org
engram init-federation north --join invitation
engram superlink fed/server
engram superlink fed/server --fleet 0.0.0.0:9092
engram register fed/server north/request
engram register fed/server north/request south/request
engram remove fed/server client-1
engram remove fed/server 3
engram withdraw NAME 3
engram withdraw NAME client-1 --federation fed/server --out runs/without-1
engram renew fed/server
engram renew fed/server --address fl.example.org:9092
engram stop fed/server
engram stop fed/server RUN
engram status fed/server
engram status fed/client-0 --json
engram schema fed/server --target outcome
engram schema fed/server --target outcome --set missing=median
engram statistics fed/server
engram statistics fed/server --survival --csv
engram doctor fed/server
engram doctor fed/client-0 --json
engram node fed/client-0
engram node fed/client-0 --data rows.npz
engram approve fed/client-0
engram approve fed/client-0 REQUEST --refuse
engram policy fed/client-0
engram policy fed/client-0 --accept
engram log fed/client-0
engram log fed/client-0 --json
engram ledger fed/client-0
engram ledger fed/client-0 --json
engram release NAME --federation fed/server --requester trial-12
engram release NAME --verify keys
engram leave fed/client-2
engram leave /etc/engram/client-2
engram memory list fed/client-0
engram memory forget fed/client-0
engram new hospitals; cd hospitals && engram run
engram app flower-app; flwr run flower-app
"""  # of all subcommands; {0} and {1} stand for methods


def examples_of(name: str) -> list[str]:
    """Returns a command's examples, with names of methods."""
    methods = work.family("local", compared=True)
    own = (line for line in _EXAMPLES.splitlines() if line.split()[1] == name)
    return [part.format(*methods) for line in own for part in line.split("; ")]


@cache
def _functions(module: str) -> list[ast.FunctionDef]:
    path = str(find_spec(module).origin)  # type: ignore[union-attr]  # ours all have files
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    return [node for node in tree.body if isinstance(node, ast.FunctionDef)]


def first_line(name: str) -> str:
    """Reads the first line of a command's help from its source, since modules take long to load."""
    for node in _functions(COMMANDS[name]):
        decorators = [ast.dump(each) for each in node.decorator_list]
        if node.name.strip("_") == name or any(f"value={name!r}" in d for d in decorators):
            return str(ast.get_docstring(node)).partition("\n")[0]
    raise LookupError(name)


class _Lazy(TyperGroup):
    """A group that knows its commands by name and first line, and imports the one called."""

    def __init__(self, **attributes: Any) -> None:
        names = {name: title for title, group in GROUPS.items() for name in group.split()}
        stubs = {name: TyperCommand(name, rich_help_panel=title) for name, title in names.items()}
        super().__init__(**attributes | {"commands": stubs})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns a command as ``engram --help`` shows it; None if there is none."""
        if command := super().get_command(ctx, cmd_name):
            command.help = first_line(cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command that is called, and imports it."""
        name, _, rest = super().resolve_command(ctx, args)
        group = get_group(import_module(COMMANDS[str(name)]).app)
        command = group.commands.get(str(name), group)
        more = [command.epilog] if command.epilog else []
        command.epilog = "\n\n".join(["Examples:", *examples_of(str(name)), *more])
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
    if COMMANDS[command] not in _PROCESSES and command != "status":
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
        _end(str(error), error.status)
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
    text = " ".join(f"{category.__name__}: {message}".split())
    print(f"engram: {one_line(text)}", file=sys.stderr)
