"""Times rounds between processes, with TLS, of nodes apart or together in one process.

``python -m benchmarks.network`` starts a federation of three clients on this machine for each kind
of node and each size of model, over the loopback interface. It prints the median round, how the
mean node spends it: training (as reported), transfer (both ways, including polling delays) and
waiting (for the slowest node), what of it is the server's processor time, and the memory that the
nodes take. ``--nodes together --sizes 31k --clients 3 20 100`` is of many nodes.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import psutil

from benchmarks.harness import numbers_table
from engram.cli.console import out
from engram.runs.run import Run
from engram.settings.experiment import Experiment
from engram.simulations.deployed import run_deployed
from engram.simulations.loopback import LoopbackFederation

_NODES: Final = ("apart", "together")
SIZES: Final = {"31k": "200,85", "2.5M": "1540,1540"}
"""Parameters of the networks, and the widths of their hidden layers."""


class Cost(NamedTuple):
    """Medians over rounds, except the first, in which nodes load their data."""

    seconds: float  # duration of a round
    training: float  # seconds of it for the mean node
    transfer: float  # likewise
    waiting: float  # likewise
    superlink: float  # seconds of a core that the server works
    mebibytes: float  # sent and received in a round
    memory: float  # MiB that a node takes, shared pages divided among those who share them


def measure(folder: Path, hidden: str, rounds: int, *, clients: int, together: bool) -> Cost:
    """Runs FedAvg for ``rounds`` rounds in a new federation, in a new folder."""
    own = {
        "method": "fedavg",
        "hidden": hidden,
        "num-rounds": rounds,
        "num-clients": clients,
        "clients-per-round": clients,
        "min-clients": clients,
        "partition": "dirichlet",
        "eval-every": rounds,
    }
    experiment = Experiment.from_config({**own})
    worked, memory = list[float](), [0.0]
    with LoopbackFederation(folder, clients=clients, together=together) as federation:
        superlink, *others = (federation.processes[name].pid for name in federation.names)

        def on_round(row: Mapping[str, Any]) -> None:
            worked.append(sum(psutil.Process(superlink).cpu_times()[:2]))
            if row["round"] == rounds - 1:
                memory[0] = sum(map(taken, others)) / clients

        run_deployed(
            experiment, folder / "run", federation.server,
            on_round=on_round,
        )  # fmt: skip
    rows = Run.open(folder / "run").rows()[2:]

    def median(key: str) -> float:
        return float(np.median([row[key] for row in rows]))

    return Cost(
        seconds=median("ms") / 1000,
        training=median("seconds-training"),
        transfer=median("seconds-transfer"),
        waiting=median("seconds-waiting"),
        superlink=(worked[-2] - worked[1]) / max(1, len(worked) - 3),
        mebibytes=(median("bytes-sent") + median("bytes-received")) / 2**20,
        memory=memory[0],
    )


def taken(number: int) -> float:
    """Returns the MiB that a process and its children take."""
    first = psutil.Process(number)
    every = [first, *first.children(recursive=True)]
    return float(sum(process.memory_full_info().pss for process in every)) / 2**20


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line, and prints a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network", description=__doc__)
    parser.add_argument("--nodes", nargs="+", choices=_NODES, default=_NODES)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--clients", nargs="+", type=int, default=[3])
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args(arguments)
    title = "seconds a round"
    table = numbers_table("nodes", "clients", "parameters", *Cost._fields, title=title)
    for nodes, size, clients in product(given.nodes, given.sizes, given.clients):
        with tempfile.TemporaryDirectory(prefix="engram-network-") as folder:
            cost = measure(
                Path(folder) / "federation", SIZES[size], given.rounds,
                clients=clients, together=nodes == "together",
            )  # fmt: skip
        table.add_row(nodes, str(clients), size, *(f"{value:.2f}" for value in cost))
        print(nodes, clients, size, cost, flush=True)
    out.print(table)


if __name__ == "__main__":
    main()
