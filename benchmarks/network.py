"""Times rounds between processes: resident nodes and Flower's own, with TLS and authentication.

``python -m benchmarks.network`` starts a federation of three clients on this machine for each kind
of node and each size of model, over gRPC on the loopback interface. It prints the median round, and
how the mean node spends it: training (as reported), transfer (both ways, including polling delays)
and waiting (for the slowest node).
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, get_args

import numpy as np
from rich.console import Console

from benchmarks.harness import numbers_table
from federation.experiment import Experiment
from server.record import RunRecord
from simulations.deployed import run_deployed
from simulations.loopback import LoopbackFederation, Nodes

_CLIENTS = 3
SIZES: Final = {"31k": "200,85", "2.5M": "1540,1540"}
"""Parameters of the networks, and the widths of their hidden layers."""


class Cost(NamedTuple):
    """Medians over rounds, except the first, in which nodes load their data."""

    seconds: float  # duration of a round
    training: float  # seconds of it for the mean node
    transfer: float  # likewise
    waiting: float  # likewise
    mebibytes: float  # sent and received in a round


def measure(folder: Path, nodes: Nodes, hidden: str, rounds: int) -> Cost:
    """Runs FedAvg for ``rounds`` rounds in a new federation, in a new folder."""
    own = {
        "method": "fedavg",
        "hidden": hidden,
        "num-rounds": rounds,
        "num-clients": _CLIENTS,
        "clients-per-round": _CLIENTS,
        "rows-per-class": 20,
        "test-rows-per-class": 8,
        "eval-every": rounds,
    }
    experiment = Experiment.from_config({**own})
    with LoopbackFederation(folder, clients=_CLIENTS, nodes=nodes) as federation:
        run_deployed(experiment, folder / "run", federation.server, control=federation.control)
    rows = RunRecord.open(folder / "run").rows()[2:]

    def median(key: str) -> float:
        return float(np.median([row[key] for row in rows]))

    return Cost(
        seconds=median("ms") / 1000,
        training=median("seconds-training"),
        transfer=median("seconds-transfer"),
        waiting=median("seconds-waiting"),
        mebibytes=(median("bytes-sent") + median("bytes-received")) / 2**20,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line, and prints a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network", description=__doc__)
    parser.add_argument("--nodes", nargs="+", choices=get_args(Nodes), default=get_args(Nodes))
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args(arguments)
    title = f"{_CLIENTS} nodes, seconds a round"
    table = numbers_table("nodes", "parameters", *Cost._fields, title=title)
    for nodes in given.nodes:
        for size in given.sizes:
            with tempfile.TemporaryDirectory(prefix="engram-network-") as folder:
                cost = measure(Path(folder) / "federation", nodes, SIZES[size], given.rounds)
            table.add_row(nodes, size, *(f"{value:.2f}" for value in cost))
    Console().print(table)


if __name__ == "__main__":
    main()
