"""Compares an undisturbed run with one that is killed at random.

``python -m benchmarks.chaos --kills 50 --seed 0`` starts a federation of three clients on this
machine, with TLS and authentication, and runs LocalMOML with memories carried from round to round.
At random instants it kills a client, the coordinator or the SuperLink (SIGKILL, with its children)
and restarts it a moment later, as a supervisor would. In the end the model and every client's
memory must be those of the same run in one undisturbed process, which trains client by client as
nodes do: together, clients' sums are rounded otherwise, and over 200 rounds that grows to 3e-4.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import psutil
import torch
import typer

from benchmarks.harness import Keep, new_folder, report, start
from engram.client.disk_memory import DiskStore
from engram.core.types import Params
from engram.runs.run import Run
from engram.settings.errors import EngramError
from engram.settings.experiment import Experiment
from engram.simulations.deployed import run_deployed
from engram.simulations.engine import simulate
from engram.simulations.loopback import LoopbackFederation
from engram.wire.tensors import tensors_from_bytes

_CLIENTS = 3
_TARGETS = ("client", "coordinator", "superlink")


class Kill(NamedTuple):
    """One kill."""

    server_round: int  # the recorded round after which it happens
    delay: float  # seconds after that
    target: str  # ``client-I``, ``coordinator`` or ``superlink``
    pause: float  # seconds until the restart; ``run_deployed`` restarts the coordinator itself


class DisturbedRun(NamedTuple):
    """The outcome of a disturbed run."""

    kills: dict[str, int]  # number of kills by target
    seconds: float  # duration of the run
    difference: float  # largest absolute difference between any two entries of the models
    memory_difference: float  # the same, of the clients' memories
    memories_lost: int  # clients whose memory of the last round is missing or damaged
    rounds_lost: int  # rounds that were not recorded exactly once, or not with every client

    @property
    def unharmed(self) -> bool:
        """Whether the result is as if nothing had happened."""
        near = max(self.difference, self.memory_difference) <= 1e-5
        return near and self.memories_lost == self.rounds_lost == 0


def plan(kills: int, rounds: int, seed: int) -> list[Kill]:
    """Draws kills, in order of time."""
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(kills):
        target = str(rng.choice(_TARGETS))
        name = f"client-{rng.integers(_CLIENTS)}" if target == "client" else target
        at = int(rng.integers(rounds - 1))  # long before the end of the last round
        drawn.append(Kill(at, float(rng.uniform(0, 0.3)), name, float(rng.uniform(0, 3))))
    return sorted(drawn)


def settings(rounds: int) -> dict[str, Any]:
    """Settings by which every round needs every client and its memory."""
    return {
        "num-rounds": rounds,
        "num-clients": _CLIENTS,
        "clients-per-round": _CLIENTS,
        "min-clients": _CLIENTS,
        "timeout": 300.0,
        "memory": "carry",
        "local-steps": 1000,  # so that a round takes as long as a kill is delayed
        "rows-per-class": 20,
        "test-rows-per-class": 8,
        "eval-every": rounds,
        "checkpoint-every": 3,
    }


def chaos(folder: Path, kills: Sequence[Kill], rounds: int, *, say: Any = print) -> DisturbedRun:
    """Runs the federation in a new folder, kills as planned, and compares."""
    experiment = Experiment.from_config(settings(rounds))
    calm, run = folder / "calm", folder / "run"
    reached, done, over = [-1], list[Kill](), threading.Event()
    start = time.monotonic()
    with LoopbackFederation(folder / "federation", clients=_CLIENTS) as federation:
        killer = threading.Thread(
            target=_kill_all, args=(federation, kills, done, reached, over, say), daemon=True
        )
        killer.start()

        def on_round(row: dict[str, Any]) -> None:
            reached[0] = max(reached[0], row["round"])

        run_deployed(
            experiment, run, federation.server, on_round=on_round,
            on_trouble=lambda line: say(f"{time.monotonic() - start:6.1f} s  {line}"),
        )  # fmt: skip
        seconds = time.monotonic() - start
        over.set()
        killer.join()
    killed = dict(Counter(kill.target for kill in done))
    simulate(Experiment.from_config(settings(rounds) | {"participation": str(run)}), calm)
    return compare(folder / "federation", calm, run, rounds, killed, seconds)


def _kill_all(
    federation: LoopbackFederation,
    kills: Sequence[Kill],
    done: list[Kill],
    reached: list[int],
    over: threading.Event,
    say: Any,
) -> None:
    for kill in kills:
        while reached[0] < kill.server_round and not over.is_set():
            time.sleep(0.02)
        if over.wait(kill.delay):
            return
        if kill.target == "coordinator":
            _kill_coordinator(over)
        else:
            federation.kill(kill.target)
            time.sleep(kill.pause)
            federation.start(kill.target)
        done.append(kill)
        say(f"{len(done)}: {kill.target} killed in round {reached[0] + 1}")


def _kill_coordinator(over: threading.Event) -> None:
    while not over.is_set():
        with contextlib.suppress(psutil.Error):  # a process may end meanwhile
            for child in psutil.Process().children():
                if "engram.simulations.coordinator" in child.cmdline():
                    child.kill()
                    return
        time.sleep(0.05)


def compare(
    federation: Path, calm: Path, run: Path, rounds: int, kills: dict[str, int], seconds: float
) -> DisturbedRun:
    """Compares a disturbed run with a calm one, in one process.

    Raises:
        EngramError: If a run has no checkpoint.
    """
    wanted, found = (Run.open(path).load_checkpoint() for path in (calm, run))
    if wanted is None or found is None:
        raise EngramError("a run ended without a checkpoint")
    rows = Run.open(run).rows()
    whole = Counter(row["round"] for row in rows if not row.get("left-out"))
    theirs = tensors_from_bytes(wanted.memories or b"")
    training = Run.open(run).config["training"]
    lost, apart = 0, 0.0
    for client in range(_CLIENTS):
        prefix = f"{client}/{rounds}/"
        right = {k.removeprefix(prefix): x for k, x in theirs.items() if k.startswith(prefix)}
        store = DiskStore(federation / f"client-{client}" / "state" / "memory" / training)
        try:
            apart = max(apart, distance(store.read(client, rounds), right))
        except (EngramError, OSError):
            lost += 1
    return DisturbedRun(
        kills=kills,
        seconds=seconds,
        difference=distance(found.model, wanted.model),
        memory_difference=apart,
        memories_lost=lost,
        rounds_lost=sum(whole[server_round] != 1 for server_round in range(rounds + 1)),
    )


def distance(one: Params, other: Params) -> float:
    """Returns the largest absolute difference between entries of the same name."""
    return max(float(torch.max(torch.abs(one[name] - other[name]))) for name in other)


def main(
    kills: Annotated[int, typer.Option(min=0)] = 5,
    seed: int = 0,
    rounds: Annotated[int, typer.Option(min=0, help="0: one for each kill, at least 30")] = 0,
    keep: Keep = False,
) -> None:
    """Prints the outcome of a disturbed run; exits with 1 if the run was harmed."""
    rounds = rounds or max(30, kills)  # a run without a new round between deaths is given up
    with new_folder("chaos", keep=keep) as folder:
        found = chaos(folder, plan(kills, rounds, seed), rounds)
    report(f"{rounds} rounds, {sum(found.kills.values())} kills, seed {seed}", found)


if __name__ == "__main__":
    start(main)
