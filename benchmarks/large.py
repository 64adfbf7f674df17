"""Rounds of a large model between processes: memory, and a cut link.

``python -m benchmarks.large --width 4900`` runs FedAvg with a network of two hidden layers of so
many units on a federation of four nodes on this machine, with TLS and authentication. It samples
each process's own memory (``RssAnon``: without files, which the kernel may drop). For root on
Linux nodes are behind links (``benchmarks.namespaces``): then bytes are counted on the first node's
link, which is cut for ten seconds in the second round, once as many bytes have come as half a
model has.
"""

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from benchmarks.endurance import coordinates
from benchmarks.harness import Keep, new_folder, numbers_table, start
from benchmarks.namespaces import LinkedFederation, bytes_over, enter_namespace
from engram.cli.console import out
from engram.settings.experiment import Experiment
from engram.simulations.deployed import run_deployed
from engram.simulations.loopback import LoopbackFederation

_CLIENTS, _ROUNDS = 4, 4
_CUT_IN = 2  # the round
_CUT = 10.0  # seconds
_LOOK = 0.2  # seconds between samples
_INPUTS, _CLASSES = 64, 10


def settings(width: int) -> dict[str, Any]:
    """Returns settings of rounds that are mostly messages."""
    return {
        "method": "fedavg",
        "hidden": f"{width},{width}",
        "num-rounds": _ROUNDS,
        "num-clients": _CLIENTS,
        "clients-per-round": _CLIENTS,
        "min-clients": _CLIENTS,
        "local-steps": 1,
        "eval-every": _ROUNDS,
        "checkpoint-every": _ROUNDS,
        "timeout": 3000.0,
    }


def mebibytes(width: int) -> float:
    """Returns the size of the model."""
    return 4 * ((_INPUTS + 1 + width + 1) * width + (width + 1) * _CLASSES) / 2**20


def anonymous(process: psutil.Process) -> float:
    """Returns a process's own memory in MiB; 0 of one that has ended."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def memory_of(processes: Mapping[str, int]) -> dict[str, float]:
    """Returns the memory of a federation's processes, with children, and of the coordinator."""
    found = defaultdict[str, float](float)
    for name, number in processes.items():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            first = psutil.Process(number)
            for process in [first, *first.children(recursive=True)]:
                found["coordinator" if coordinates(process) else name] += anonymous(process)
    return found


def measure(folder: Path, width: int) -> None:
    """Runs the federation in a new folder, and prints time and memory."""
    linked = enter_namespace()
    federation = (LinkedFederation if linked else LoopbackFederation)(folder, clients=_CLIENTS)
    peaks, rows, over = defaultdict[str, float](float), list[Mapping[str, Any]](), threading.Event()
    passed = [0]

    def watch() -> None:
        cut = False
        while not over.wait(_LOOK):
            for name, size in memory_of(dict(processes)).items():
                peaks[name] = max(peaks[name], size)
            begun = rows and rows[-1]["round"] == _CUT_IN - 1
            if cut or not begun or not isinstance(federation, LinkedFederation):
                continue
            if bytes_over("client-0") - passed[-1] > mebibytes(width) * 2**19:
                cut = True
                federation.cut("client-0")
                over.wait(_CUT)
                federation.mend("client-0")
                print(f"cut for {_CUT:g} s in round {_CUT_IN}", flush=True)

    def on_round(row: Mapping[str, Any]) -> None:
        passed.append(bytes_over("client-0") if linked else 0)
        rows.append(row)
        of_round = (passed[-1] - passed[-2]) / 2**20
        sent = f", {of_round:.1f} MiB over the first node's link" if linked else ""
        print(f"round {row['round']}: {row.get('ms', 0) / 1000:.1f} s{sent}", flush=True)

    with federation:
        processes = {name: process.pid for name, process in federation.processes.items()}
        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        begun = time.monotonic()
        run_deployed(
            Experiment.from_config(settings(width)), folder / "run", federation.server,
            control=federation.control, on_round=on_round, on_trouble=print,
        )  # fmt: skip
        seconds = time.monotonic() - begun
        over.set()
        watching.join()
    title = f"a model of {mebibytes(width):.0f} MiB, {_CLIENTS} nodes: {seconds:.0f} s"
    table = numbers_table("process", "peak MiB", "of the model", title=title)
    for name, size in peaks.items():
        table.add_row(name, f"{size:.0f}", f"{size / mebibytes(width):.2f}")
    out.print(table)


def main(
    width: Annotated[int, typer.Option(min=1, help="units of both hidden layers")] = 4900,
    keep: Keep = False,
) -> None:
    """Prints seconds and bytes of each round, and the most memory of each process."""
    with new_folder("large", keep=keep) as folder:
        measure(folder, width)


if __name__ == "__main__":
    start(main)
