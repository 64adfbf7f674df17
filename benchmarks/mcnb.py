"""Meta-Ban beside its authors' code: ``python -m benchmarks.mcnb --mcnb CHECKOUT``.

CHECKOUT is the authors' repository, banyikun/MCNB. Its Meta-Ban plays with the settings and the
training schedule of its ``run.py`` in the worlds of ``engram reproduce meta-ban``, and ours in the
same ones: users, arms and rewards are alike in every round. Theirs takes about a minute of a core
for 1000 rounds.
"""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import torch
import typer

from engram.bandits.environments.environment import Environment
from engram.bandits.meta_ban import meta_ban
from engram.bandits.play import play_policy
from engram.bandits.studies.environments import EnvironmentSpec, draw_environment
from engram.bandits.studies.study import difference, summarize_runs
from engram.bandits.studies.trials import POINTS, at_shares
from engram.cli.console import new_table, out
from engram.core.arrays import Array
from engram.simulations.job_pool import Row
from engram.studies.summaries import grouped

_AUTHORS: Final = "authors"

OURS: Final[Mapping[str, Mapping[str, Any]]] = {
    "ours": {},
    "ours-no-cap": {"group_cap": None},
    # As near as our options come to run.py. There is one step a round for ten every tenth round,
    # since Theta adapts where a user is served; half of a squared error takes twice the step size.
    "ours-published": {
        "gamma": 0.4,
        "nu": np.inf,
        "alpha": 0.01,
        "own_weight": 1.0,
        "buffer": 10_000,
        "adapt_every": 10,
        "meta_steps": 100,
        "eta_meta": 0.02,
        "batch": 1,
        "user_steps": 50,
        "eta_user": 0.02,
    },
}
"""Our Meta-Ban with its defaults, and with other settings."""


def authors_regrets(checkout: Path, drawn: Environment, seed: int) -> Array:
    """Plays the authors' Meta-Ban as their ``run.py`` does; returns its regret after each round.

    Args:
        checkout: Their repository.
        drawn: The world.
        seed: Seed of the global generators that it draws from.
    """
    if str(checkout) not in sys.path:
        sys.path.append(str(checkout))
    theirs: Any = import_module("mcnb").MCNB
    np.random.seed(seed)
    torch.manual_seed(seed)
    settings = {"n_arm": drawn.arms, "gamma": 0.4, "lr": 0.001, "nu": 1e-4}
    policy = theirs(drawn.dim, drawn.users, **settings)
    regrets = np.empty(drawn.horizon)
    for t in range(drawn.horizon):
        offer = drawn.round(t)
        arm, group, _ = policy.select(offer.user, offer.arms, t)
        policy.update(offer.user, offer.arms[arm], float(offer.rewards[arm]), group)
        if t % (10 if t < 1000 else 100) == 0:
            policy.train_meta(policy.users, t, 1000, policy.lr)
            policy.train(offer.user, t)
        regrets[t] = offer.means.max() - offer.means[arm]
    return np.asarray(regrets.cumsum())


def play_authors(checkout: Path, spec: EnvironmentSpec, horizon: int, seed: int) -> list[Row]:
    """Plays the authors' code in one world; returns its row."""
    begun = time.thread_time()
    found = authors_regrets(checkout, draw_environment(spec, horizon, seed), seed)
    return _rows(_AUTHORS, [seed], found[None], time.thread_time() - begun)


def play_ours(name: str, spec: EnvironmentSpec, horizon: int, seeds: Sequence[int]) -> list[Row]:
    """Plays our Meta-Ban in all worlds at once; returns a row for each."""
    begun, drawn = time.thread_time(), [draw_environment(spec, horizon, seed) for seed in seeds]
    settings = {**OURS[name]}
    if name == "ours-published":
        settings["group_cap"] = drawn[0].users // 5
    policy = meta_ban(drawn[0].dim, runs=len(seeds), **settings)
    found = play_policy(policy.batched, drawn, seeds).regrets
    return _rows(name, seeds, found, time.thread_time() - begun)


def _rows(name: str, seeds: Sequence[int], regrets: Array, seconds: float) -> list[Row]:
    rounds = np.unique(at_shares(regrets.shape[1], range(1, POINTS + 1)))
    ms = 1e3 * seconds / regrets.size
    row = {"method": name, "setting": {}, "rounds": rounds.tolist(), "ms": ms}
    return [
        {**row, "seed": seed, "errors": own[rounds - 1].tolist()}
        for seed, own in zip(seeds, regrets, strict=True)
    ]


def compared(done: Iterable[Row]) -> list[Row]:
    """Returns ``summarize_runs``' rows, each with ``over``, differences to the authors' code.

    They are intervals of level 0.95 over worlds, after each of ``rounds``; None for the authors'
    code itself, and without it.
    """
    runs = {name: own for (name,), own in grouped(done, "method").items()}
    rows = summarize_runs([run for own in runs.values() for run in own])
    for row in rows:
        own, theirs = runs[row["method"]], runs.get(_AUTHORS)
        row["over"] = None
        if theirs is not None and own is not theirs:
            gaps = dict(zip(own[0]["rounds"], difference(own, theirs), strict=True))
            row["over"] = [gaps[end] for end in row["rounds"]]
    return rows


def main(
    mcnb: Annotated[Path, typer.Option(exists=True, file_okay=False, help="Their repository.")],
    name: Annotated[str, typer.Option("--world", help="A world without sources.")] = "digits",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in each world.")] = 1000,
    seeds: Annotated[int, typer.Option(min=1, help="Worlds.")] = 20,
) -> None:
    """Prints a table of regrets, and in brackets by how much they are above the authors'."""
    torch.set_num_threads(1)
    spec = EnvironmentSpec(name, (), ("user", "item", "rating"), "data")
    played = [play_authors(mcnb, spec, rounds, seed) for seed in range(seeds)]
    played += [play_ours(title, spec, rounds, range(seeds)) for title in OURS]
    rows = compared([row for each in played for row in each])
    table = new_table(["regret"], [*map(str, rows[0]["rounds"]), "ms a round"])
    for row in rows:
        gaps = row["over"] or [None] * len(row["regrets"])
        cells = [
            f"{regret:.0f}"
            + (f" ({round(gap.mean):+d} ± {gap.high - gap.mean:.0f})" if gap else "")
            for regret, gap in zip(row["regrets"], gaps, strict=True)
        ]
        table.add_row(row["method"], *cells, f"{row['ms']:.1f}")
    out.print(table)


if __name__ == "__main__":
    typer.run(main)
