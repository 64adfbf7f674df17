"""Rates of a comparison's claims: false ones among twins, and differences that are found.

``python -m benchmarks.claims --record scores.npz`` trains FedAvg many times on the same clients,
each time with other cohorts: twins, between which there is no difference. Then
``python -m benchmarks.claims --resample scores.npz`` draws comparisons of eight twins from these
runs and counts those that call any of them better than another (family-wise error), with
``engram.compare.differences`` and with Student's interval of each pair by itself; and, where one
twin is given ten points more, those that call it better than a given other one (power).
"""

from collections.abc import Collection
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Final
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import typer
from rich.progress import track
from rich.table import Table
from scipy.stats import t

from engram.cli.console import out
from engram.compare.differences import pairwise
from engram.settings.experiment import Experiment
from engram.simulations.engine import simulate
from engram.strategies.running.rounds import Rounds, draw_cohort

SETTINGS: Final = {
    "method": "fedavg",
    "partition": "dirichlet",
    "dirichlet-alpha": 0.3,
    "num-clients": 20,
    "clients-per-round": 5,
    "num-rounds": 30,
    "eval-every": 30,
    "hidden": "32",
}
_MODELS: Final = {"common": "accuracy", "fine-tuned": "accuracy-tuned"}
_SHIFT: Final = 0.10  # of accuracy

Pool = npt.NDArray[np.float64]
"""Scores, shape (seeds, twins, clients); NaN for a client that was not scored."""


def twin(seed: int, number: int, folder: Path) -> dict[str, Any]:
    """Returns each client's scores after a run of a seed's data with cohorts of its own."""

    def cohort(
        self: Rounds,
        server_round: int,
        clients: int,
        absent: Collection[int] = (),
        size: int | None = None,
        unseen: Collection[int] = (),
    ) -> list[int]:
        drawn, size = 1000 * (1 + number) + seed, size or self.settings.clients_per_round
        return draw_cohort(drawn, server_round, clients, size, absent={*absent, *unseen})

    with patch.object(Rounds, "cohort", cohort):
        found = simulate(Experiment.from_config(SETTINGS | {"seed": seed}), folder)
    clients: dict[str, Any] = found["clients"]
    return clients


def record(path: Path, seeds: int, twins: int, folder: Path) -> None:
    """Trains the twins, and writes their pools."""
    clients = int(str(SETTINGS["num-clients"]))
    pools: dict[str, Any] = {name: np.full((seeds, twins, clients), np.nan) for name in _MODELS}
    for seed in track(range(seeds)):
        for number in range(twins):
            scored = twin(seed, number, folder / f"{seed}-{number}")
            for name, column in _MODELS.items():
                pools[name][seed, number, scored["ids"]] = np.array(scored[column], dtype=float)
    np.savez(path, **pools)


def by_pairs(scores: dict[str, list[Pool]]) -> dict[tuple[str, str], bool]:
    """Mask of pairs that Student's interval over seeds tells apart, one by one.

    Of a single seed it is over the clients. This is how comparisons are often made.
    """
    found, seeds = {}, len(next(iter(scores.values())))
    quantile = t.ppf(0.975, (seeds if seeds > 1 else len(next(iter(scores.values()))[0])) - 1)
    for one, other in combinations(scores, 2):
        gaps = np.array(scores[one]) - np.array(scores[other])
        values = gaps.mean(axis=1) if seeds > 1 else gaps[0]
        within = (gaps.var(axis=1, ddof=1) / gaps.shape[1]).mean() if seeds > 1 else 0.0
        error = max(values.var(ddof=1), within) / len(values)
        found[one, other] = bool(abs(values.mean()) > quantile * np.sqrt(error))
    return found


def simultaneous(scores: dict[str, list[Pool]]) -> dict[tuple[str, str], bool]:
    """Mask of pairs that a comparison tells apart."""
    return {pair: difference.shown for pair, difference in pairwise(scores).items()}


def rates(
    pool: Pool, seeds: int, twins: int, tries: int, shift: float
) -> dict[str, tuple[float, float]]:
    """Returns false claims and power by rule: shares of comparisons that are drawn from a pool.

    Each takes seeds without replacement, and of each seed other twins, in random order.
    """
    rng = np.random.default_rng(0)
    names = [f"twin {k}" for k in range(twins)]
    rules = {rule.__name__: rule for rule in (by_pairs, simultaneous)}
    counts = {name: np.zeros(2) for name in rules}
    for _ in range(tries):
        chosen = rng.choice(len(pool), seeds, replace=False)
        drawn = [pool[s, rng.choice(pool.shape[1], twins, replace=False)] for s in chosen]
        scores = {name: [each[k] for each in drawn] for k, name in enumerate(names)}
        better = scores | {names[0]: [each + shift for each in scores[names[0]]]}
        for name, rule in rules.items():
            counts[name] += any(rule(scores).values()), rule(better)[names[0], names[1]]
    return {name: tuple((each / tries).tolist()) for name, each in counts.items()}


def main(
    record_to: Annotated[Path | None, typer.Option("--record", help="Train twins.")] = None,
    resample: Annotated[Path | None, typer.Option(help="Draw comparisons of them.")] = None,
    folder: Annotated[Path, typer.Option(help="Where the runs go.")] = Path("runs/twins"),
    seeds: Annotated[int, typer.Option(help="Seeds to train.")] = 12,
    twins: Annotated[int, typer.Option(help="Twins of each seed.")] = 16,
    tries: Annotated[int, typer.Option(help="Comparisons to draw.")] = 1000,
) -> None:
    """Trains twins, or draws comparisons of twins that were trained."""
    if record_to is not None:
        record(record_to, seeds, twins, folder)
    if resample is None:
        return
    table = Table("scores", "seeds", "rule", "false claims", "ten points found")
    with np.load(resample) as pools:
        for name in _MODELS:
            for count in (1, 2, 3, 5, 10):
                for rule, found in rates(pools[name], count, 8, tries, _SHIFT).items():
                    table.add_row(name, str(count), rule, *(f"{each:.1%}" for each in found))
    out.print(table)


if __name__ == "__main__":
    typer.run(main)
