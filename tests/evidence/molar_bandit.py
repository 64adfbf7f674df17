"""Regret of MOLARB and other policies, relative to the batched OLS bandit.

``python -m tests.evidence.molar_bandit`` plays the simulation of Section 4.1 of the MOLAR paper,
with activation probabilities drawn anew in each trial. A ratio is of regrets summed over all tasks,
in the same worlds; its mean over trials is printed with its standard error. Under Model-C also for
J.3.5's variant that keeps all history (``all``), relative to the OLS bandit that does not.
"""

from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from engram.core.arrays import Array
from engram.tables.bandits.environments import BanditModel
from engram.tables.bandits.policies import (
    MultitaskBandit,
    lasso_bandit,
    molar_bandit,
    ols_bandit,
    robust_multitask_bandit,
    trace_norm_bandit,
)
from engram.tables.bandits.site import History
from engram.tables.studies.bandit import SIGMA, TASKS, regrets, worlds

_ACTIVATION: Final = 103  # a seed's purpose


def _policies(history: History) -> dict[str, MultitaskBandit[Any, Any]]:
    return {
        "OLSB": ols_bandit(history=history),
        "LASSOB": lasso_bandit(history=history),
        **({"TNB": trace_norm_bandit()} if history == "batch" else {}),
        "RMB": robust_multitask_bandit(history=history),
        "MOLARB": molar_bandit(sigma=SIGMA, history=history),
        "MOLARB, sigma estimated": molar_bandit(history=history),
    }


def compare(model: BanditModel, history: History, *, trials: int, horizon: int) -> dict[str, Array]:
    """Returns the ratios of each policy, shape (trials,)."""
    baseline, policies = ols_bandit(), _policies(history)
    ratios: dict[str, list[float]] = {name: [] for name in policies}
    for trial in range(trials):
        activation = np.random.default_rng([_ACTIVATION, trial]).uniform(size=TASKS)
        drawn = worlds(model, activation, horizon, trial)
        ols = regrets(baseline, drawn, trial)[:, -1].sum()
        for name, policy in policies.items():
            ratios[name].append(regrets(policy, drawn, trial)[:, -1].sum() / ols)
    return {name: np.array(found) for name, found in ratios.items()}


def main(
    trials: Annotated[int, typer.Option(min=2, help="At least 2.")] = 10,
    horizon: Annotated[int, typer.Option(min=64, help="T.")] = 5000,
) -> None:
    """Prints a table."""
    columns: dict[str, tuple[BanditModel, History]] = {
        "Model-C, batch": ("C", "batch"),
        "Model-C, all": ("C", "all"),
        "Model-P, batch": ("P", "batch"),
    }
    found = {
        heading: compare(*column, trials=trials, horizon=horizon)
        for heading, column in columns.items()
    }
    table = Table(title=f"regret over the batched OLS bandit's, T = {horizon}, {trials} trials")
    table.add_column("policy")
    for heading in columns:
        table.add_column(heading, justify="right")
    for name in found["Model-C, batch"]:
        table.add_row(name, *(_cell(ratios.get(name)) for ratios in found.values()))
    Console().print(table)


def _cell(ratios: Array | None) -> str:
    if ratios is None:
        return "-"
    return f"{ratios.mean():.3f} ± {ratios.std(ddof=1) / np.sqrt(len(ratios)):.3f}"


if __name__ == "__main__":
    typer.run(main)
