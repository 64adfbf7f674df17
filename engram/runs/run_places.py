"""Folders of runs: new ones, made and locked, and those that are there."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from engram.runs.run import Run
from engram.settings.errors import Refused, brief
from engram.settings.experiment import Experiment
from engram.settings.files import locked, refusing

if TYPE_CHECKING:
    from engram.client.hosts import Engine

_REMOVED: Final = 100  # times that others may remove a folder while it is being taken
_LONGEST: Final = 60  # characters of a data set's name in a folder's name


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
    with refusing(f"{folder} cannot be made"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def find_run(run: str) -> Path:
    """Returns the folder of a run, given by its path or its name in runs/."""
    for folder in (Path(run), Path("runs") / run):
        if folder.is_dir():
            return folder
    raise Refused(f"no run {brief(run)}: it is neither a folder nor a name in runs/")


def begun(folder: Path, method: str | None) -> tuple[dict[str, Any], "Engine"]:
    """Returns the settings and the engine of a run that goes on, with a method if that is said.

    Raises:
        Refused: It is not the folder of a run, or that of a run of another method.
    """
    config = Run.open(folder).config
    settings: dict[str, Any] = config["settings"] | {"resume": str(folder)}
    if method not in (None, settings["method"]):
        raise Refused(f"{folder} is a run of {settings['method']}, got {method}")
    # A run of Flower's is refused further on, in words of its own.
    return settings, "sequential" if config["engine"] == "sequential" else "vectorized"
