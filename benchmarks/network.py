"""Times rounds between processes, with TLS, of nodes together in one process, or apart.

``python -m benchmarks.network --clients 3 20 100 300`` runs FedAvg with a small model on a new
federation over the loopback interface, and then as many bytes over the bare link. ``--clients 4
--parameters 128M --apart --rounds 4`` is of a large one: 490 MiB. It prints the median round and,
for the mean node, the training (as reported), transfer and waiting (for the slowest node) in it.
"""

import argparse
import os
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from benchmarks import link
from engram.runs.run import Run
from engram.settings.experiment import Experiment
from engram.simulations.deployed import run_deployed
from engram.simulations.loopback import LoopbackFederation

_TIMES: Final = ("seconds-training", "seconds-transfer", "seconds-waiting")
SIZES: Final = {"31k": "200,85", "2.5M": "1540,1540", "128M": "11300,11300"}
"""Parameters of the networks, and the widths of their hidden layers."""


def measure(folder: Path, clients: int, given: argparse.Namespace) -> float:
    """Runs rounds in a new federation, prints their times, and returns the MiB of a model."""
    rounds = given.rounds
    every = dict.fromkeys(("num-clients", "clients-per-round", "min-clients"), clients)
    own = {"method": "fedavg", "hidden": SIZES[given.parameters], "partition": "iid"}
    often = {"num-rounds": rounds, "eval-every": rounds, "timeout": 600}
    experiment = Experiment.from_config({**own, **every, **often})
    peaks = defaultdict[str, float](float)
    with LoopbackFederation(folder, clients=clients, together=not given.apart) as federation:
        names = {process.pid: name for name, process in federation.processes.items()}

        def on_round(_: Mapping[str, Any]) -> None:
            for process in psutil.Process().children(recursive=True):
                name = names.get(process.pid, "run or worker")
                peaks[name] = max(peaks[name], link.own_memory(process))

        run_deployed(experiment, folder / "run", federation.server, on_round=on_round)
    rows = Run.open(folder / "run").rows()[2:]  # in the first, nodes load their data
    took = {key: float(np.median([row[key] for row in rows])) for key in ("ms", *_TIMES)}
    size = float(np.median([row["bytes-sent"] for row in rows])) / clients / 2**20
    print(
        f"{clients} nodes, {size:.2f} MiB: {took['ms'] / 1000:.3f} s a round"
        f" ({', '.join(f'{key} {took[key]:.3f}' for key in _TIMES)}),"
        f" load {os.getloadavg()[0]:.1f}; own MiB: { ({k: round(v) for k, v in peaks.items()}) }",
        flush=True,
    )
    return size


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network", description=__doc__)
    parser.add_argument("--clients", nargs="+", type=int, default=[3, 20])
    parser.add_argument("--parameters", choices=list(SIZES), default="31k")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--apart", action="store_true", help="a process for each node")
    given = parser.parse_args(arguments)
    for clients in given.clients:
        with tempfile.TemporaryDirectory(prefix="engram-network-") as folder:
            size = measure(Path(folder) / "federation", clients, given)
        bare = ["--clients", str(clients), "--mebibytes", str(size), "--rounds", str(given.rounds)]
        link.main([*bare, *(["--apart"] if given.apart else [])])


if __name__ == "__main__":
    main()
