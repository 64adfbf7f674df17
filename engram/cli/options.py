"""Options, settings and folders that the commands that run experiments share."""

import errno
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import click
import typer
from rich.table import Table
from typer.core import TyperCommand

from engram.cli import work
from engram.cli.console import err
from engram.cli.console import out as console
from engram.link.addresses import CONTROL
from engram.runs.record import RunRecord
from engram.settings.base import GROUPS
from engram.settings.errors import Refused, brief, together
from engram.settings.experiment import FIRST, Experiment, Impossible, read_by
from engram.settings.fields import Settings, key_of, range_of, searched_range
from engram.settings.files import locked
from engram.settings.plugins import project_settings
from engram.settings.settings_files import read_settings
from engram.studio.tracking.sending import TRACKERS

if TYPE_CHECKING:
    from engram.client.hosts import Engine

_REMOVED: Final = 100  # times that others may remove a folder while it is being taken
_LONGEST: Final = 60  # characters of a data set's name in a folder's name


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
    return [
        (
            key_of(name),
            json.dumps(field.default),
            range_of(field),
            str(searched_range(field) or ""),
            field.description or "",
        )
        for name, field in group.model_fields.items()
    ]


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
Run = Annotated[str, argument("RUN", "Its folder, or its name in runs/.")]
Runs = Annotated[Path, argument("[FOLDER]", "Default: runs.")]
Server = Annotated[Path, argument("SERVER_FOLDER", "The folder `server` of a federation.")]
Control = Annotated[
    str | None, option("HOST:PORT", f"Its SuperLink's Control API; default {CONTROL}.")
]
Port = Annotated[int, option("PORT", "Serve /metrics and /healthz on this machine alone.", min=0)]
Methods = Annotated[
    list[str] | None, argument("[METHOD]...", "Default: some that are often compared.")
]
Seeds = Annotated[str | None, option("N", "Runs of each, from `seed` upwards; default 5.")]
Format = Annotated[str, option("FORMAT", "safetensors or onnx.", "--format")]
JsonInstead = Annotated[bool, flag("--json", "Print JSON instead.")]
Site = Annotated[Path, argument("FOLDER", "A client's folder, `client-N` of a federation.")]
State = Annotated[
    Path | None, option("DIR", "Where the node keeps its memories; default FOLDER/state.")
]
Policy = Annotated[
    Path | None, option("FILE", "The node's policy; default FOLDER/policy.toml, if there.")
]


# --- Settings ------------------------------------------------------------------------------


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


def begun(folder: Path, method: str | None) -> tuple[dict[str, Any], "Engine"]:
    """Returns the settings and the engine of a run that goes on, with a method if that is said.

    Raises:
        Refused: It is not the folder of a run, or that of a run of another method.
    """
    config = RunRecord.open(folder).config
    settings: dict[str, Any] = config["settings"] | {"resume": str(folder)}
    if method not in (None, settings["method"]):
        raise Refused(f"{folder} is a run of {settings['method']}, got {method}")
    # A run of Flower's is refused further on, in words of its own.
    return settings, "sequential" if config["engine"] == "sequential" else "vectorized"


def refuse_beside_resume(work: str, given: Iterable[object], instead: str = "nothing else") -> None:
    """Refuses options beside ``--resume``, which goes on with a piece of work as begun."""
    if any(given):
        raise Refused(f"--resume goes on with a {work} as it was begun: give {instead}")


def refuse_keys(overrides: Mapping[str, Any], instead: Mapping[str, str]) -> None:
    """Refuses settings for which a command has options."""
    for key in overrides.keys() & instead.keys():
        raise Refused(f"{key} is not a setting of this command: use {instead[key]}")


# --- Folders -------------------------------------------------------------------------------


def data_name(experiment: Experiment) -> str:
    """Returns a short name of the data set, for folders: its kind, where the name is long."""
    source = experiment.source
    return source.short_name if len(source.short_name) <= _LONGEST else source.kind


@contextmanager
def new_folder(named: Path | None, default: str) -> Iterator[Path]:
    """Yields an unused folder, the named one or a new one in runs/, made and locked at once.

    No two calls get the same one, in this process or in others. What is still empty when the block
    ends, because nothing was begun in it, is removed if it was missing before the call.

    Raises:
        Refused: The named one is used, by another process perhaps, or cannot be made.
    """
    day = f"{default}-{datetime.now():%Y-%m-%d}"
    names = (Path("runs") / f"{day}{f'-{number}' * (number > 1)}" for number in count(1))
    with ExitStack() as stack:
        check_unused(named)
        for folder in [named] if named else names:
            try:
                _take(stack, folder, new=not named)
                break
            except BlockingIOError as error:
                if named:
                    why = f"{named} is in use by a process: give out another folder"
                    raise Refused(why) from error
            except OSError as error:
                if named or not isinstance(error, FileExistsError):
                    raise Refused(f"{folder} cannot be made: {error.strerror}") from error
        check_unused(folder)
        yield folder


def check_unused(folder: Path | None) -> None:
    """Refuses a folder that holds something, or is none; there may be none."""
    if folder is None:
        return
    try:
        used = any(folder.iterdir())
    except FileNotFoundError:
        return
    except NotADirectoryError:  # it, or one of its parents
        used = os.path.lexists(folder)
    except OSError as error:
        raise Refused(f"{folder} cannot be used: {error.strerror}") from error
    if used:
        raise Refused(f"{folder} is there already: give out another folder, or resume it")


def folder_of_command(named: Path | None, default: str) -> Path:
    """Returns an unused folder, locked until the command ends: see ``new_folder``."""
    return click.get_current_context().with_resource(new_folder(named, default))


def _take(stack: ExitStack, folder: Path, *, new: bool) -> None:
    """Makes a folder and its parents, and locks it; new ones are removed if they stay empty.

    The folder is removed under its lock, lest one call removes what another has just taken.
    """
    missing = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    for path in reversed(missing[1:]):
        stack.callback(_remove_empty, path)
    removed = FileNotFoundError if new else (FileNotFoundError, FileExistsError)
    for last in [False] * _REMOVED + [True]:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=not new)
            stack.enter_context(locked(folder, folder=True))
            break
        except removed:  # the folder or a parent, by another call that ends
            if last:
                raise
    if folder in missing:
        stack.callback(_remove_empty, folder)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # it holds something
        folder.rmdir()


def make_folder(folder: Path) -> None:
    """Makes a folder and its parents."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"{folder} cannot be made: {error.strerror}") from error


@contextmanager
def as_allowed(folder: Path) -> Iterator[None]:
    """Runs a block that draws anew; says in one line where the folder may not be written into."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        line = f"engram: nothing is drawn anew in {folder}: {error.strerror}"
        err.print(line, markup=False, soft_wrap=True)


def find_run(run: str) -> Path:
    """Returns the folder of a run, given by its path or its name in runs/."""
    for folder in (Path(run), Path("runs") / run):
        if folder.is_dir():
            return folder
    raise Refused(f"no run {brief(run)}: it is neither a folder nor a name in runs/")
