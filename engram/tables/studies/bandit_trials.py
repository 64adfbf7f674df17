"""Contextual bandits of the MOLAR paper (Section 4.1, Figure 4): five policies in the same worlds.

Each trial draws parameters, contexts and noise anew, for all policies alike. Activation
probabilities are drawn once, so that a task is the same one in every trial.
"""

from typing import Any, Final, NamedTuple

import numpy as np

from engram.core.arrays import Array
from engram.simulations.job_pool import Progress, Row
from engram.tables.bandits.environments import BanditModel, TaskEnvironment, sparse_environments
from engram.tables.bandits.policies import (
    MultitaskBandit,
    lasso_bandit,
    molar_bandit,
    ols_bandit,
    play_tasks,
    robust_multitask_bandit,
    trace_norm_bandit,
)

TASKS: Final = 20
DIM: Final = 30
ARMS: Final = 3
SIGMA: Final = 0.5  # of the noise; known to MOLARB, since the others' constants are tuned to it

_ACTIVATION, _WORLD, _TIES = 2, 101, 102  # keys of random streams

# A draw of 20 uniform numbers whose smallest, 0.055, and largest, 0.967, are about as expected.
ACTIVATION: Final = np.random.default_rng(_ACTIVATION).uniform(size=TASKS)

_ORDER: Final = np.argsort(-ACTIVATION)
SHOWN: Final = {  # tasks with curves
    "largest": int(_ORDER[0]),
    "middle": int(_ORDER[TASKS // 2]),
    "smallest": int(_ORDER[-1]),
}

_POINTS: Final = 250  # of a curve


class Policy(NamedTuple):
    """A policy."""

    title: str  # its name in the paper
    bandit: MultitaskBandit[Any, Any]  # how it plays


POLICIES: Final = {
    "ols": Policy("OLSB", ols_bandit()),
    "lasso": Policy("LASSOB", lasso_bandit()),
    "trace-norm": Policy("TNB", trace_norm_bandit()),
    "robust-multitask": Policy("RMB", robust_multitask_bandit()),
    "molar": Policy("MOLARB", molar_bandit(sigma=SIGMA)),
}


def worlds(
    model: BanditModel, activation: Array, horizon: int, trial: int
) -> list[TaskEnvironment]:
    """Draws the environments of a trial's tasks: (d, s, M, K) = (30, 2, 20, 3)."""
    rng = np.random.default_rng([_WORLD, trial])
    return sparse_environments(
        rng,
        model,
        activation=activation,
        horizon=horizon,
        dim=DIM,
        differing=2,
        arms=ARMS,
        sigma=SIGMA,
    )


def regrets(policy: MultitaskBandit[Any, Any], drawn: list[TaskEnvironment], trial: int) -> Array:
    """Plays a trial; returns the cumulative regret of each task after each round, (M, T)."""
    return play_tasks(policy, drawn, np.random.default_rng([_TIES, trial]).spawn(len(drawn)))


def trial_size(horizon: int) -> int:
    """Returns how many bytes of memory the worlds of a trial take, mostly contexts."""
    # 1.4 times the contexts was measured, with the arrays that a batch computes from them.
    return int(2 * ACTIVATION.sum() * horizon * ARMS * DIM * 8)


def run_trial(horizon: int, trial: int, report: Progress) -> list[Row]:
    """Draws a trial's worlds, and plays all policies in them.

    All randomness depends on the trial's number.

    Returns:
        A row for each policy: ``policy``, ``trial``; ``errors``, the final regret of each task;
        ``rounds``, at which curves have points, and ``curves``, by the names of ``SHOWN``.
    """
    drawn = worlds("C", ACTIVATION, horizon, trial)
    rounds = np.unique(np.linspace(1, horizon, _POINTS).round().astype(int))
    rows = []
    for done, (name, policy) in enumerate(POLICIES.items()):
        report(done, len(POLICIES))
        found = regrets(policy.bandit, drawn, trial)
        curves = {shown: found[m, rounds - 1].tolist() for shown, m in SHOWN.items()}
        row = {"policy": name, "trial": trial, "errors": found[:, -1].tolist()}
        rows.append({**row, "rounds": rounds.tolist(), "curves": curves})
    report(len(POLICIES), len(POLICIES))
    return rows
