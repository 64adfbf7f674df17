"""Times rounds in one process, in workers, and in independent copies that share their work.

``python -m benchmarks.cores`` prints a row for each federation: milliseconds on the wall, medians.
Copies are processes of their own, each with its share of a round's clients, which begin a round
together: what they need is the least that so many cores can need.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Annotated, Any, Final

import torch
import typer

from benchmarks import contenders
from benchmarks.harness import chosen, in_turns, numbers_table, start
from benchmarks.workloads import WORKLOADS, Platform, experiment, federation
from engram.cli.console import out
from engram.cohort.trainer.workers import Workers
from engram.core.machine import cores
from engram.settings.experiment import Experiment

_NETWORKS: Final = ("resnet-8", "lstm 2x128", "transformer of 2")
_WARM_UP: Final = 3  # rounds, of which the first shows whether workers pay


def settings_of(name: str, method: str) -> tuple[Experiment, Any]:
    """Returns a federation's experiment and its data."""
    if name in WORKLOADS:
        e = experiment(WORKLOADS[name], method=method, alpha=0.01, eta=0.01)
        return e, federation(WORKLOADS[name], e)
    return contenders.experiment(name, "fedavg"), contenders.federation(name)


@contextmanager
def copies(e: Experiment, data: Any, count: int) -> Iterator[list[Connection]]:
    """Starts so many processes with a share of a round's clients each.

    Yields:
        What each is told a round's number by, and answers by when it is done.
    """
    fork, each = multiprocessing.get_context("fork"), e.clients_per_round // count
    lines, processes = list[Connection](), list[Any]()
    for i in range(count):
        here, there = multiprocessing.Pipe()
        own = e.model_copy(update={"clients_per_round": each, "seed": e.seed + i})
        processes.append(fork.Process(target=_copy, args=(own, data, there), daemon=True))
        processes[-1].start()
        lines.append(here)
    try:
        yield lines
    finally:
        for process in processes:
            process.kill()


def _copy(e: Experiment, data: Any, line: Connection) -> None:
    torch.set_num_threads(1)
    platform = Platform(e, data)
    while True:
        platform.round(line.recv())
        line.send(None)


def _together(lines: list[Connection], turn: int) -> None:
    for line in lines:
        line.send(turn + 1)
    for line in lines:
        line.recv()


def time_rounds(name: str, method: str, rounds: int, count: int) -> dict[str, Any]:
    """Times a federation: ``ms`` in ``one`` process, in ``workers`` and in ``copies``.

    ``processes`` is the number of workers, and ``equal`` whether the models are, to the bit.
    """
    e, data = settings_of(name, method)
    with (
        copies(e, data, count) as lines,
        closing(Workers(e.model_copy(update={"cores": 0 if count == cores() else count}))) as share,
    ):
        one, many = Platform(e, data), Platform(e, data, share=share)
        runs: dict[str, Callable[[int], object]] = {
            "one": one.turn,
            "workers": many.turn,
            "copies": partial(_together, lines),
        }
        ms = in_turns(runs, rounds, warm_up=_WARM_UP)
        equal = all(leaf.equal(many.model[path]) for path, leaf in one.model.items())
        return {"ms": ms, "processes": 1 + len(share.pids), "equal": equal}


def main(
    of: Annotated[str, typer.Option(help="with commas")] = ",".join([*WORKLOADS, *_NETWORKS]),
    method: Annotated[str, typer.Option(help="of W1 to W3")] = "fedavg",
    rounds: Annotated[int, typer.Option(min=1, help="timed rounds")] = 9,
    count: Annotated[int, typer.Option("--cores", min=2, help="processes")] = max(2, cores()),
) -> None:
    """Times rounds in one process, in workers, and in copies that share the work."""
    torch.set_num_threads(1)
    heads = ["one", "many", "/ one", "copies", "/ copies", "workers", "equal"]
    table = numbers_table("", *heads, title=f"{method}, {count} processes, {rounds} rounds")
    for name in chosen(of, [*WORKLOADS, *_NETWORKS]):
        found = time_rounds(name, method, rounds, count)
        one, many, apart = found["ms"].values()
        cells = [f"{one:.1f}", f"{many:.1f}", f"{many / one:.2f}", f"{apart:.1f}"]
        cells += [f"{many / apart:.2f}", str(found["processes"])]
        table.add_row(name, *cells, "yes" if found["equal"] else "NO")
    out.print(table)


if __name__ == "__main__":
    start(main)
