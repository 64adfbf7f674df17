"""Times secure rounds beside plain ones: in one process, and between nodes over gRPC.

``python -m benchmarks.secure`` runs FedAvg on digits with messages, where all clients are parties
of a secure round that this process computes, one after the other, besides the server's part.
It prints the processor's seconds for a median round. ``--nodes`` starts four nodes on this machine,
and prints those of a mean round, of all processes together, and the clock's of a median one.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
import psutil

from benchmarks.harness import numbers_table
from engram.cli.console import out
from engram.runs.record import RunRecord
from engram.settings.experiment import Experiment
from engram.simulations.deployed import run_deployed
from engram.simulations.engine import simulate
from engram.simulations.loopback import LoopbackFederation
from engram.strategies import Row

_NODES: Final = 4
SIZES: Final = {"2k": "30", "31k": "200,85", "1M": "960,960"}
"""Parameters of the networks, and the widths of their hidden layers."""


def experiment(clients: int, hidden: str, rounds: int, aggregation: str) -> Experiment:
    """A run of FedAvg with all clients in every round."""
    own = {
        "method": "fedavg",
        "hidden": hidden,
        "num-rounds": rounds,
        "num-clients": clients,
        "clients-per-round": clients,
        "clip": 0.3,
        "partition": "dirichlet",
        "eval-every": rounds,
        "aggregation": aggregation,
        "checkpoint-every": 1,
    }
    return Experiment.from_config({**own})


def clock(folder: Path) -> float:
    """Returns the median seconds of a recorded run's rounds, without the first."""
    rows = RunRecord.open(folder).rows()[2:]
    return float(np.median([row["ms"] for row in rows])) / 1000


def in_process(folder: Path, clients: int, hidden: str, rounds: int) -> tuple[float, float]:
    """Returns the processor's seconds for a plain round, with messages, and for a secure one."""
    found = []
    for aggregation in ("plain", "secure"):
        e = experiment(clients, hidden, rounds, aggregation)
        ticks = list[float]()

        def tick(row: Row, ticks: list[float] = ticks) -> None:
            del row
            ticks.append(time.process_time())

        simulate(e, folder / aggregation, on_round=tick, through=lambda host: host)
        found.append(float(np.median(np.diff(ticks)[1:])))
    return found[0], found[1]


def spent(federation: LoopbackFederation) -> float:
    """Returns the processor's seconds of a federation's processes, and of those they started."""
    roots = [psutil.Process(process.pid) for process in federation.processes.values()]
    everyone = [*roots, *chain.from_iterable(root.children(recursive=True) for root in roots)]
    return sum(sum(process.cpu_times()[:4]) for process in everyone)


def on_nodes(folder: Path, hidden: str, rounds: int) -> tuple[float, float, float, float]:
    """Returns the processor's seconds of a plain and a secure round of four nodes, and the clock's.

    A run's start is not in them: it is taken off as a run of one round has it.
    """
    ticks, clocks = [], []
    with LoopbackFederation(folder / "fed", clients=_NODES) as federation:
        for aggregation in ("plain", "secure"):
            costs = []
            for number in (1, 1, rounds):  # the first starts the nodes' workers
                e, run = experiment(_NODES, hidden, number, aggregation), folder / aggregation
                shutil.rmtree(run, ignore_errors=True)
                before = spent(federation)
                run_deployed(e, run, federation.server, control=federation.control)
                costs.append(spent(federation) - before)
            ticks.append((costs[2] - costs[1]) / (rounds - 1))
            clocks.append(clock(run))
    return ticks[0], ticks[1], clocks[0], clocks[1]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line, and prints a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.secure", description=__doc__)
    parser.add_argument("--clients", nargs="+", type=int, default=[10, 20, 50])
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--nodes", action="store_true")
    given = parser.parse_args(arguments)
    where = "between nodes" if given.nodes else "in one process"
    title = f"processor's seconds a round, {where}"
    clocked = ("plain, clock", "secure, clock") if given.nodes else ()
    table = numbers_table("clients", "parameters", "plain", "secure", *clocked, title=title)
    for clients in [_NODES] if given.nodes else given.clients:
        for size in given.sizes:
            with tempfile.TemporaryDirectory(prefix="engram-secure-") as name:
                folder, hidden = Path(name), SIZES[size]
                times = (
                    on_nodes(folder, hidden, given.rounds)
                    if given.nodes
                    else in_process(folder, clients, hidden, given.rounds)
                )
            table.add_row(str(clients), size, *(f"{t:.3f}" for t in times))
    out.print(table)


if __name__ == "__main__":
    main()
