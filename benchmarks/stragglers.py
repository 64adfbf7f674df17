"""Simulated time to the same accuracy: synchronous rounds beside buffered asynchronous ones.

``python -m benchmarks.stragglers [--method M] [--seeds N] [--out FOLDER]``: a method on digits,
where a tenth of the clients is ten times slower in steps and bytes. The time is that of the clock,
which does not depend on the machine. A plot is written to ``FOLDER``.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Final

from matplotlib.figure import Figure

from engram.compare.plots import save
from engram.runs.record import RunRecord
from engram.settings.experiment import Experiment
from engram.simulations.engine import simulate

_GIVEN: Final[Mapping[str, Any]] = {
    "num_clients": 50,
    "clients_per_round": 20,
    "partition": "dirichlet",
    "eval_every": 4,
    "eta": 0.1,
    "clock": "drawn,stragglers=0.1,slowdown=10,speed-spread=0.3",
}
_WAYS: Final[Mapping[str, Mapping[str, Any]]] = {
    "synchronous": {"num_rounds": 80},
    "deadline": {"num_rounds": 80, "deadline": 1.5},
    "over-selection": {"num_rounds": 80, "over_selection": 0.3},
    "buffered": {"num_rounds": 200, "buffer_size": 10},
}
_SHARE: Final = 0.98  # of the best mean accuracy of synchronous rounds: what all are to reach

Points = Sequence[tuple[float, float]]


def points(method: str, way: str, seed: int, folder: Path) -> Points:
    """Runs an experiment; returns the mean accuracy over clients by simulated seconds."""
    e = Experiment(method=method, seed=seed, **_GIVEN, **_WAYS[way])
    simulate(e, folder)
    rows = [row for row in RunRecord.open(folder).rows() if "accuracy" in row]
    return [(row.get("simulated-seconds", 0.0), row["accuracy"]) for row in rows]


def reached(found: Points, target: float) -> float:
    """First second with an accuracy; infinity without it."""
    return min((second for second, accuracy in found if accuracy >= target), default=float("inf"))


def main() -> None:
    """Prints a table of seconds, and draws a plot."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    runs: dict[str, list[Points]] = {way: [] for way in _WAYS}
    with TemporaryDirectory() as folder:
        for way, each in runs.items():
            for seed in range(given.seeds):
                each.append(points(given.method, way, seed, Path(folder) / f"{way}-{seed}"))
    targets = [_SHARE * max(accuracy for _, accuracy in found) for found in runs["synchronous"]]
    told = f"seconds until accuracy {fmean(targets):.3f}, mean of {given.seeds} seeds"
    print(f"{given.method}: {told}")
    base = [*map(reached, runs["synchronous"], targets)]
    for way, each in runs.items():
        seconds = [*map(reached, each, targets)]
        ratios = [a / b for a, b in zip(seconds, base, strict=True)]
        told = f"{fmean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"  {way:15} {fmean(seconds):8.1f}   of synchronous: {told}", flush=True)
    if given.out:
        save(drawn(runs, given.method), given.out / f"stragglers-{given.method}.png")


def drawn(runs: Mapping[str, Sequence[Points]], method: str) -> Figure:
    """Draws the first seed's accuracy against simulated seconds."""
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    for way, (first, *_) in runs.items():
        axes.plot(*zip(*first, strict=True), label=way)
    axes.set(xlabel="simulated seconds", ylabel="accuracy, mean over clients", title=method)
    axes.set_xlim(0, runs["synchronous"][0][-1][0])
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


if __name__ == "__main__":
    main()
