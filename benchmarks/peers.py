"""Other systems in processes of their own, and the rows that they train on."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, cast

import numpy as np
import torch
from torch import Tensor

from benchmarks.module_peers import ONE_THREAD
from benchmarks.networks import Case
from engram.core.streams import Stream, generator, torch_generator
from engram.data.federated import FederatedData, model_for
from engram.settings.errors import brief
from engram.settings.experiment import Experiment
from engram.settings.fingerprint import source_root


class PeerMissing(Exception):
    """A peer cannot be timed; the message says why."""


def drawn_rows(
    e: Experiment, data: FederatedData, server_round: int, client: int, batches: int = 1
) -> Tensor:
    """Returns the rows that a client trains on in a round, batch by batch.

    The shape is (steps x batches of a step, batch size).
    """
    rows = data.train.rows[client]
    rng = generator(e.seed, Stream.LOCAL_STEPS, server_round, client)
    drawn = rows[rng.integers(len(rows), size=e.local_steps * batches * e.batch_size)]
    return torch.from_numpy(drawn).view(-1, e.batch_size)


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


class Peer:
    """A peer in a process of its own, which does a round when it is told to."""

    def __init__(self, command: Sequence[str], log: Path, threads: int = 1) -> None:
        """Starts it; its output goes to the file, but for answers.

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
