"""Settings and seeds of FedAvg as one stack, and one run after another: seconds, and numbers.

Both train on the demo's federation (digits, 20 clients of whom 10 train in a round, a network of
two hidden layers of 40) and score all clients once, after the last round. One after another, each
is a run as `engram run` makes it, with messages, screening and a record.

    python -m benchmarks.tuning [--settings 32] [--seeds 3] [--rounds 80]
"""

import logging
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer

from engram.cohort.trainer.worker_pool import training_from_now_on
from engram.settings.experiment import Experiment
from engram.simulations.engine import simulate
from engram.tune.runs import LockStep

Losses = npt.NDArray[np.float64]


def main(
    settings: Annotated[int, typer.Option(min=1, help="Step sizes.")] = 32,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of a run.")] = 80,
) -> None:
    """Prints both times, their ratio, and by how much clients' losses differ."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    runs = experiments(settings, seeds, rounds)
    simulate(runs[0], Path(tempfile.mkdtemp()) / "warm-up")
    alone, expected = one_after_another(runs)
    together, found = stacked(runs)
    apart = [np.abs(a - b).max() for a, b in zip(expected, found, strict=True)]
    print(f"{len(runs)} runs of {rounds} rounds: {settings} step sizes, {seeds} seeds")
    print(f"one after another {alone:.1f} s, as one stack {together:.1f} s: {together / alone:.3f}")
    within = sum(value <= 1e-5 for value in apart)
    print(
        f"largest difference of a client's loss: {max(apart):.1e}; at most 1e-5 in {within} of "
        f"{len(runs)} runs"
    )


def experiments(settings: int, seeds: int, rounds: int) -> list[Experiment]:
    """Returns runs with step sizes of 0.003 to 0.3, evenly spaced in their logarithm."""
    first = Experiment(
        method="fedavg", num_rounds=rounds, eval_every=rounds, checkpoint_every=rounds
    )
    return [
        Experiment.from_config(
            first.to_config() | {"fedavg.eta": float(f"{eta:.4g}"), "seed": seed}
        )
        for eta in np.geomspace(0.003, 0.3, settings)
        for seed in range(seeds)
    ]


def one_after_another(runs: Sequence[Experiment]) -> tuple[float, list[Losses]]:
    """Returns the seconds that runs take by themselves, and each client's loss after each."""
    start, found = time.perf_counter(), []
    for run in runs:
        with tempfile.TemporaryDirectory() as folder:
            found.append(np.array(simulate(run, Path(folder) / "run")["clients"]["loss"]))
    return time.perf_counter() - start, found


def stacked(runs: Sequence[Experiment]) -> tuple[float, list[Losses]]:
    """Returns the same of runs that train in lock step."""
    start, rounds = time.perf_counter(), runs[0].rounds
    training_from_now_on(runs[0].cpu_threads)
    steps = LockStep(runs)
    steps.advance(rounds, range(len(runs)))
    found = [member.scores(rounds).columns["loss"].numpy() for member in steps.members]
    return time.perf_counter() - start, found


if __name__ == "__main__":
    typer.run(main)
