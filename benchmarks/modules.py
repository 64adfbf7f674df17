"""Times rounds of FedAvg on networks that are modules, against a plain loop and other systems.

``python -m benchmarks.modules`` prints rows for each network. The contenders take turns, round by
round, with one thread each. Ours go through the real strategy and grid. Peers are timed where
``--peers`` names the Python of an environment that has them, each in a process of its own.
"""

import contextlib
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Annotated, Any, Final, cast

import numpy as np
import torch
import typer
from rich.table import Table

from benchmarks.harness import chosen, start
from benchmarks.module_peers import ONE_THREAD, PEERS
from benchmarks.networks import CASES, CLIENTS, LENGTH, ROWS, STEP_SIZE, TOKENS, Case
from benchmarks.peers import PeerMissing, drawn_rows, plain_loop
from benchmarks.workloads import Platform
from engram.cli.console import out
from engram.core.streams import Stream, torch_generator
from engram.data.federated import FederatedData, model_for
from engram.data.load_federation import federated_data
from engram.data.readers.in_memory import hold
from engram.networks.registry import NETWORKS, model
from engram.settings.errors import Refused, brief
from engram.settings.experiment import Experiment
from engram.settings.fingerprint import source_root

_WARM_UP: Final = 5  # rounds, in which the faster way is found


def experiment(name: str) -> Experiment:
    """Returns a case's experiment, on random rows."""
    case, rng = CASES[name], np.random.default_rng(0)
    rows, text = CLIENTS * ROWS * 5 // 4, len(case.shape) == 1
    arrays: dict[str, Any] = {"task": np.repeat(np.arange(CLIENTS), rows // CLIENTS)}
    if text:
        tokens = rng.integers(TOKENS, size=(rows, LENGTH + 1))
        arrays |= {"x": tokens[:, :-1], "y": tokens[:, 1:]}
    else:
        images = rng.normal(size=(rows, *case.shape)).astype(np.float32)
        arrays |= {"x": images, "y": np.arange(rows) % 10}
    model(case.make, name)
    return Experiment(
        method="fedavg",
        model=name,
        task="next-token" if text else "classification",
        dataset=hold(arrays),
        partition="natural",
        test_fraction=0.2,
        num_clients=CLIENTS,
        clients_per_round=CLIENTS,
        local_steps=case.steps,
        batch_size=case.batch,
        eta=STEP_SIZE,
    )


class Peer:
    """A peer in a process of its own, which does a round when it is told to."""

    def __init__(self, command: Sequence[str], log: Path, threads: int = 1) -> None:
        """Starts it.

        Args:
            command: Starts its process.
            log: File for what it prints that is no answer.
            threads: Number of threads of its kernels.

        Raises:
            PeerMissing: It is not installed there, or has no such network.
        """
        self._log = log
        few = {"XLA_FLAGS": ONE_THREAD} if threads == 1 else {}
        with self._log.open("w") as log_file:
            self._process = subprocess.Popen(
                command,
                cwd=source_root(),
                env=os.environ | {"OMP_NUM_THREADS": str(threads)} | few,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                text=True,
            )
        self._said("ready")

    def round(self, _: int = 0) -> float:
        """Does a round, its next; returns the milliseconds that it took."""
        cast("IO[str]", self._process.stdin).write("\n")
        cast("IO[str]", self._process.stdin).flush()
        return float(self._said("ms"))

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()

    def _said(self, word: str) -> str:
        line = cast("IO[str]", self._process.stdout).readline()
        first, _, rest = line.strip().partition(" ")
        if first != word:
            self.end()
            last = ["its process ended", *self._log.read_text().splitlines()][-1]
            raise PeerMissing(rest if first == "missing" else brief(last))
        return rest


def write_round(e: Experiment, data: FederatedData, case: Case, folder: Path) -> None:
    """Writes the first round's start, and its rows in their order, for peers."""
    initial = model_for(e, data.kind).init(torch_generator(e.seed, Stream.MODEL))
    names = case.make().state_dict()
    torch.save(dict(zip(names, initial.values(), strict=True)), folder / "start.pt")
    batches = 2 if e.method == "per-fedavg" else 1
    drawn = [drawn_rows(e, data, 1, client, batches) for client in range(e.num_clients)]
    shape = (e.num_clients, e.local_steps, batches, e.batch_size)
    x, y = (part.unflatten(0, shape) for part in data.train.take(torch.cat(drawn).flatten()))
    np.savez(folder / "rows.npz", x=x.numpy(), y=y.numpy())


def time_case(name: str, rounds: int, python: str | None = None) -> dict[str, Any]:
    """Times a case.

    Args:
        name: Of ``CASES``.
        rounds: How many are timed.
        python: The interpreter of an environment with peers; None for no peers.

    Returns:
        Milliseconds a round of each contender, ``ms``, medians; how far each model is from that of
        the plain loop after the first round, ``apart``; which ``way`` ours has taken; and why a
        peer is left out, ``notes``.
    """
    e = experiment(name)
    data = federated_data(e)
    platform, loop = Platform(e, data), plain_loop(e, data, NETWORKS[e.model]())
    times: dict[str, list[float]] = {"ours": [], "plain loop": []}
    apart: dict[str, float] = {}
    notes: list[str] = []
    peers: dict[str, Peer] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="engram-")))
        write_round(e, data, CASES[name], folder)
        for peer in PEERS if python else ():
            try:
                words = ("benchmarks.module_peers", peer, name, str(folder), "fedavg")
                peers[peer] = Peer([str(python), "-m", *words], folder / f"{peer}.log")
                stack.callback(peers[peer].end)
                times[peer] = []
            except PeerMissing as error:
                notes.append(f"{peer} is left out of {name}: {error}")
        for server_round in range(1, _WARM_UP + rounds + 1):
            begun = time.perf_counter()
            platform.round(server_round)
            middle = time.perf_counter()
            theirs = loop(server_round)
            times["ours"].append(1000 * (middle - begun))
            times["plain loop"].append(1000 * (time.perf_counter() - middle))
            for peer, process in [*peers.items()]:
                try:
                    times[peer].append(process.round())
                except PeerMissing as error:
                    del peers[peer], times[peer]
                    notes.append(f"{peer} is left out of {name}: {error}")
            if server_round == 1:
                found = {"ours": platform.model}
                found |= {path.stem: torch.load(path) for path in folder.glob("after-*.pt")}
                for who, model_of in found.items():
                    far = max(float((model_of[k] - theirs[k]).abs().max()) for k in theirs)
                    apart[who.removeprefix("after-")] = far
    medians = {who: statistics.median(each[_WARM_UP:]) for who, each in times.items()}
    return {"ms": medians, "apart": apart, "way": platform.trainer.way, "notes": notes}


def main(
    case: Annotated[str, typer.Option(help=f"of {', '.join(CASES)}; with ;")] = ";".join(CASES),
    rounds: Annotated[int, typer.Option(min=1, help="timed rounds")] = 7,
    peers: Annotated[str, typer.Option(help="Python of an environment with peers")] = "",
) -> None:
    """Times rounds of FedAvg on modules, in turns with a plain loop and peers, with one thread."""
    cases = chosen(case, CASES, separator=";")
    if peers and not shutil.which(peers):
        raise Refused(f"--peers must be a Python, got {brief(peers)}")
    torch.set_num_threads(1)
    table = Table("", "", "ms a round", "ours / theirs", "apart", "way")
    notes = []
    for name in cases:
        found = time_case(name, rounds, peers or None)
        notes += found["notes"]
        for who, ms in found["ms"].items():
            ratio = "" if who == "ours" else f"{found['ms']['ours'] / ms:.2f}"
            apart = f"{found['apart'][who]:.1e}" if who in found["apart"] else ""
            way = found["way"] if who == "ours" else ""
            table.add_row(name if way else "", who, f"{ms:.0f}", ratio, apart, way)
    out.print(table)
    for note in notes:
        out.print(note, soft_wrap=True)


if __name__ == "__main__":
    start(main)
