"""Shared parts of benchmarks: contenders that take turns, tables, folders, the command line."""

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import typer
from rich.table import Table

from engram.cli.console import new_table
from engram.settings.errors import EngramError, Refused, brief

K = TypeVar("K", bound=Hashable)


def in_turns(
    contenders: Mapping[K, Callable[[int], object]],
    turns: int,
    *,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[K, float]:
    """Times contenders in turns, so that each ratio is of times from the same minutes.

    Their order rotates, so that none always follows the same one, whose threads may still spin.
    Each contender is a function of the number of the turn, which counts from 0; the clock tells
    seconds: ``time.thread_time`` counts those of a core.

    Returns:
        Each contender's milliseconds: the median over the turns after the ones to warm up.
    """
    times: dict[K, list[float]] = {name: [] for name in contenders}
    names = [*contenders]
    for turn in range(warm_up + turns):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            begun = clock()
            contenders[name](turn)
            times[name].append(1000 * (clock() - begun))
    return {name: statistics.median(spent[warm_up:]) for name, spent in times.items()}


def numbers_table(first: str, *headings: str, title: str | None = None) -> Table:
    """Makes an empty table of names, in the first column, and numbers, aligned to the right."""
    return new_table([first], headings, title=title)


def chosen(given: str, known: Collection[str], separator: str = ",") -> list[str]:
    """Splits an option into names.

    Raises:
        Refused: A name is not known.
    """
    names = given.split(separator)
    for name in names:
        if name not in known:
            raise Refused(f"{brief(name)} is not one of {', '.join(known)}")
    return names


Keep = Annotated[bool, typer.Option("--keep", help="keep the folder, with all logs")]


@contextmanager
def new_folder(name: str, *, keep: bool) -> Iterator[Path]:
    """Yields a new folder among temporary files; it is removed afterwards, or its place is told."""
    folder = Path(tempfile.mkdtemp(prefix=f"engram-{name}-"))
    try:
        yield folder
    finally:
        if keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder)


class Outcome(Protocol):
    """An outcome of a run that was disturbed: a named tuple."""

    @property
    def unharmed(self) -> bool:
        """Whether the run is none the worse for it."""

    def _asdict(self) -> dict[str, Any]: ...


def report(title: str, found: Outcome) -> None:
    """Prints an outcome; exits with 1 if the run was harmed."""
    print(title)
    for name, value in found._asdict().items():
        print(f"  {name.replace('_', ' '):<20}{value}")
    if not found.unharmed:
        raise typer.Exit(1)


def start(main: Callable[..., None]) -> None:
    """Runs a benchmark's command line; an error of the platform ends it with one line."""
    try:
        typer.run(main)
    except EngramError as error:
        raise SystemExit(f"benchmarks: {error}") from error
