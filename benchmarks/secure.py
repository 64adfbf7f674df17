"""Times secure rounds beside plain ones: in one process, and between nodes over gRPC.

``python -m benchmarks.secure`` runs FedAvg on digits with messages, where all clients are parties
of a secure round that this process computes, one after the other, besides the server's part.
It prints the processor's seconds for a median round. ``--nodes`` starts four nodes on this machine,
and prints the clock's.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console

from benchmarks.harness import numbers_table
from federation.experiment import Experiment
from server.record import RunRecord
from simulations.deployed import run_deployed
from simulations.engine import simulate
from simulations.loopback import LoopbackFederation
from strategies import Row

_NODES: Final = 4
SIZES: Final = {"2k": "30", "31k": "200,85", "1M": "960,960"}
"""Parameters of the networks, and the widths of their hidden layers."""


def experiment(clients: int, hidden: str, rounds: int, aggregation: str) -> Experiment:
    """Returns a run of FedAvg in which all clients take part in every round."""
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


def on_nodes(folder: Path, hidden: str, rounds: int) -> tuple[float, float]:
    """Returns the seconds of a plain and of a secure round of four nodes."""
    found = []
    with LoopbackFederation(folder / "fed", clients=_NODES) as federation:
        for client in range(_NODES):
            own = folder / "fed" / f"client-{client}" / "clients"
            shutil.copytree(federation.server / "clients", own)
        for aggregation in ("plain", "secure"):
            e, run = experiment(_NODES, hidden, rounds, aggregation), folder / aggregation
            run_deployed(e, run, federation.server, control=federation.control)
            found.append(clock(run))
    return found[0], found[1]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line, and prints a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.secure", description=__doc__)
    parser.add_argument("--clients", nargs="+", type=int, default=[10, 20, 50])
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--nodes", action="store_true")
    given = parser.parse_args(arguments)
    where = "between nodes" if given.nodes else "in one process"
    title = f"seconds a round, {where}"
    table = numbers_table("clients", "parameters", "plain", "secure", title=title)
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
    Console().print(table)


if __name__ == "__main__":
    main()
