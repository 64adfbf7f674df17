"""MOLARB's regret against epsilon: what noise on sites' sums costs them.

``python -m benchmarks.private_bandits`` lets 20 sites play among 3 arms with 30 columns, of which 2
differ at each (Section 4.1 of MOLAR's paper), in batches that double.
"""

import logging
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Final

import typer

from benchmarks.harness import numbers_table, start
from engram.cli.console import out
from engram.settings.experiment import Experiment
from engram.simulations.engine import simulate

_BOUND: Final = 6.0  # of a row of 30 standard normal numbers, whose norm is some 5.5
_ROWS: Final[dict[str, dict[str, Any]]] = {
    "without privacy": {},
    "without privacy, alone": {"threshold_scale": 0.0},
} | {
    f"{epsilon:g}": {"privacy": "example", "clip": _BOUND, "epsilon": epsilon}
    for epsilon in (16.0, 8.0, 4.0, 2.0, 1.0)
}


def regret(settings: dict[str, Any], rounds: int, seed: int) -> float:
    """Returns the mean over sites of their regret in all turns."""
    with tempfile.TemporaryDirectory(prefix="engram-") as made:
        base: dict[str, Any] = {"method": "molar-bandit", "dataset": "sparse-linear"}
        e = Experiment(**base, num_clients=20, num_rounds=rounds, seed=seed, **settings)
        return fmean(simulate(e, Path(made) / "run")["clients"]["regret"])


def main(
    rounds: Annotated[str, typer.Option(help="Batches, with commas.")] = "11,13,15",
    seeds: Annotated[int, typer.Option(min=1, help="Simulations of each.")] = 5,
) -> None:
    """Prints mean regrets."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    counts = [int(count) for count in rounds.split(",")]
    table = numbers_table("epsilon", *(f"{2 ** (count - 1)} turns" for count in counts))
    for name, settings in _ROWS.items():
        found = [fmean(regret(settings, count, seed) for seed in range(seeds)) for count in counts]
        table.add_row(name, *(f"{mean:.0f}" for mean in found))
    out.print(table)


if __name__ == "__main__":
    start(main)
