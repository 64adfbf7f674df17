"""Shared parts of benchmarks: contenders that take turns, tables of numbers, the command line."""

import statistics
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import TypeVar

import typer
from rich.table import Table

from federation.errors import EngramError, Refused, brief

K = TypeVar("K", bound=Hashable)


def in_turns(
    contenders: Mapping[K, Callable[[int], object]],
    turns: int,
    *,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[K, float]:
    """Times contenders in turns, so that each ratio is of times from the same minutes.

    Args:
        contenders: Functions of the number of the turn, which counts from 0.
        turns: Number of turns that are timed.
        warm_up: Number of turns before these.
        clock: Seconds; ``time.thread_time`` counts those of a core.

    Returns:
        Each contender's milliseconds: the median over the timed turns.
    """
    times: dict[K, list[float]] = {name: [] for name in contenders}
    for turn in range(warm_up + turns):
        for name, run in contenders.items():
            begun = clock()
            run(turn)
            times[name].append(1000 * (clock() - begun))
    return {name: statistics.median(spent[warm_up:]) for name, spent in times.items()}


def numbers_table(first: str, *headings: str, title: str | None = None) -> Table:
    """Returns an empty table of names, in the first column, and numbers, aligned to the right."""
    table = Table(first, title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


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


def start(main: Callable[..., None]) -> None:
    """Runs a benchmark's command line; an error of the platform ends it with one line."""
    try:
        typer.run(main)
    except EngramError as error:
        raise SystemExit(f"benchmarks: {error}") from error
