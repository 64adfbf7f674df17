"""Times rounds in one process, in workers, and in independent copies that share their work.

``python -m benchmarks.cores`` prints a row for each federation. The three take turns, round by
round. Copies are processes of their own, each with its share of a round's clients, which begin a
round together: what they need is the least that so many cores can need. Milliseconds on the wall
are medians; those of cores, of all processes together, are means.

Columns: ``one`` process, ``many``, ``copies``; after each of the first two its cores' milliseconds.
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Annotated, Any, Final, NamedTuple

import psutil
import torch
import typer

from benchmarks import modules
from benchmarks.harness import chosen, numbers_table, start
from benchmarks.networks import CASES
from benchmarks.workloads import WORKLOADS, Platform, experiment, federation
from engram.cli.console import out
from engram.cohort.trainer.workers import Workers
from engram.core.machine import cores
from engram.data.load_federation import federated_data
from engram.settings.experiment import Experiment

_NETWORKS: Final = {name.split()[0]: name for name in CASES if not name.startswith("cnn")}
_WARM_UP: Final = 3  # rounds, of which the first shows whether workers pay


class Spent(NamedTuple):
    """Milliseconds of rounds.

    Attributes:
        wall: Of each timed round.
        core: Of all processes' cores, in all timed rounds together.
    """

    wall: list[float]
    core: float


def settings_of(name: str, method: str) -> tuple[Experiment, Any]:
    """Returns a federation's experiment and its data."""
    if name in WORKLOADS:
        e = experiment(WORKLOADS[name], method=method, alpha=0.01, eta=0.01)
        return e, federation(WORKLOADS[name], e)
    e = modules.experiment(_NETWORKS[name])
    return e, federated_data(e)


@contextmanager
def copies(e: Experiment, data: Any, count: int) -> Iterator[list[tuple[int, Connection]]]:
    """Starts so many processes with a share of a round's clients each.

    Yields:
        Each one's number, and what is told a round's number, and says when it is done.
    """
    fork, each = multiprocessing.get_context("fork"), e.clients_per_round // count
    lines = []
    processes = []
    for i in range(count):
        here, there = multiprocessing.Pipe()
        own = e.model_copy(update={"clients_per_round": each, "seed": e.seed + i})
        processes.append(fork.Process(target=_copy, args=(own, data, there), daemon=True))
        processes[-1].start()
        lines.append((int(processes[-1].pid or 0), here))
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


def _together(lines: list[tuple[int, Connection]], server_round: int) -> None:
    for _, line in lines:
        line.send(server_round)
    for _, line in lines:
        line.recv()


def time_rounds(name: str, method: str, rounds: int, count: int) -> dict[str, Any]:
    """Times a federation in ``one`` process, in ``workers`` and in ``copies``.

    ``processes`` is the number of workers, and ``equal`` whether the models are, to the bit.
    """
    e, data = settings_of(name, method)
    with (
        copies(e, data, count) as lines,
        closing(Workers(e.model_copy(update={"cores": 0 if count == cores() else count}))) as share,
    ):
        one, many = Platform(e, data), Platform(e, data, share=share)
        runs: dict[str, Callable[[int], object]] = {
            "one": one.round,
            "workers": many.round,
            "copies": partial(_together, lines),
        }
        wall: dict[str, list[float]] = {who: [] for who in runs}
        core = dict.fromkeys(runs, 0.0)
        for server_round in range(1, _WARM_UP + rounds + 1):
            # Processes that wait use no core, so all that passes is of the one whose turn it is.
            pids = [psutil.Process().pid, *share.pids, *(pid for pid, _ in lines)]
            for who, run in runs.items():
                before, begun = _cores(pids), time.perf_counter()
                run(server_round)
                wall[who].append(1000 * (time.perf_counter() - begun))
                core[who] += 1000 * (_cores(pids) - before) * (server_round > _WARM_UP)
        equal = all(leaf.equal(many.model[path]) for path, leaf in one.model.items())
        found = {who: Spent(wall[who][_WARM_UP:], core[who]) for who in runs}
        return {**found, "processes": share.processes, "equal": equal}


def _cores(pids: list[int]) -> float:
    """Returns the seconds of cores that processes have used."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def main(
    of: Annotated[str, typer.Option(help=f"some of {', '.join([*WORKLOADS, *_NETWORKS])}")] = (
        "W1,W2,W3,resnet-8,lstm,transformer"
    ),
    method: Annotated[str, typer.Option(help="of W1 to W3")] = "fedavg",
    rounds: Annotated[int, typer.Option(min=1, help="timed rounds")] = 9,
    count: Annotated[int, typer.Option("--cores", min=2, help="processes")] = max(2, cores()),
) -> None:
    """Times rounds in one process, in workers, and in copies that share the work."""
    torch.set_num_threads(1)
    heads = ["one", "core", "many", "core", "/ one", "copies", "/ copies", "workers", "equal"]
    table = numbers_table("", *heads, title=f"{method}, {count} processes, {rounds} rounds")
    for name in chosen(of, [*WORKLOADS, *_NETWORKS]):
        found = time_rounds(name, method, rounds, count)
        one, many, apart = (statistics.median(found[w].wall) for w in ("one", "workers", "copies"))
        table.add_row(
            name,
            f"{one:.1f}",
            f"{found['one'].core / rounds:.1f}",
            f"{many:.1f}",
            f"{found['workers'].core / rounds:.1f}",
            f"{many / one:.2f}",
            f"{apart:.1f}",
            f"{many / apart:.2f}",
            str(found["processes"]),
            "yes" if found["equal"] else "NO",
        )
    out.print(table)


if __name__ == "__main__":
    start(main)
