"""Figure 4 of the MOLAR paper from measured runs, with a table of final regrets."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from rich.table import Table

from engram.cli.console import new_table, plus_minus
from engram.compare.figures import image_of
from engram.compare.panel_plots import Curve, draw_multiples
from engram.core.arrays import Array
from engram.core.machine import check_room
from engram.scoring.intervals import mean_and_error
from engram.simulations.job_pool import Pool, Progress, Row
from engram.studies.study import Report
from engram.studies.summaries import grouped
from engram.tables.bandits.environments import TaskEnvironment, sparse_environments
from engram.tables.bandits.policies import (
    lasso_bandit,
    molar_bandit,
    ols_bandit,
    play_tasks,
    robust_multitask_bandit,
    trace_norm_bandit,
)
from engram.tables.bandits.site import TaskBandit
from engram.tables.studies.settings import MolarBanditSettings

_CAPTION: Final = """\
Cumulative regret of the tasks with the largest, the middle and the smallest
probability of activation, and the mean over all 20 tasks: mean over trials
± half the 95 % interval; and the latter beside OLSB's"""
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


POLICIES: Final[dict[str, tuple[str, TaskBandit[Any, Any]]]] = {  # title in the paper, policy
    "ols": ("OLSB", ols_bandit()),
    "lasso": ("LASSOB", lasso_bandit()),
    "trace-norm": ("TNB", trace_norm_bandit()),
    "robust-multitask": ("RMB", robust_multitask_bandit()),
    "molar": ("MOLARB", molar_bandit(sigma=SIGMA)),
}


def worlds(horizon: int, trial: int) -> list[TaskEnvironment]:
    """Draws the environments of a trial's tasks: (d, s, M, K) = (30, 2, 20, 3)."""
    return sparse_environments(
        np.random.default_rng([_WORLD, trial]),
        "C",
        activation=ACTIVATION,
        horizon=horizon,
        dim=DIM,
        differing=2,
        arms=ARMS,
        sigma=SIGMA,
    )


def regrets(policy: TaskBandit[Any, Any], drawn: list[TaskEnvironment], trial: int) -> Array:
    """Plays a trial; returns the cumulative regret of each task after each round, (M, T)."""
    return play_tasks(policy, drawn, np.random.default_rng([_TIES, trial]).spawn(len(drawn)))


def trial_size(horizon: int) -> int:
    """Bytes of memory for the worlds of a trial, mostly contexts."""
    # 1.4 times the contexts was measured, with the arrays that a batch computes from them.
    return int(2 * ACTIVATION.sum() * horizon * ARMS * DIM * 8)


def run_trial(horizon: int, trial: int, report: Progress) -> list[Row]:
    """Draws a trial's worlds, and plays all policies in them.

    All randomness depends on the trial's number.

    Returns:
        A row for each policy: ``policy``, ``trial``; ``errors``, the final regret of each task;
        ``rounds``, at which curves have points, and ``curves``, by the names of ``SHOWN``.
    """
    drawn = worlds(horizon, trial)
    rounds = np.unique(np.linspace(1, horizon, _POINTS).round().astype(int))
    rows = []
    for done, (name, (_, policy)) in enumerate(POLICIES.items()):
        report(done, len(POLICIES))
        found = regrets(policy, drawn, trial)
        curves = {shown: found[m, rounds - 1].tolist() for shown, m in SHOWN.items()}
        row = {"policy": name, "trial": trial, "errors": found[:, -1].tolist()}
        rows.append({**row, "rounds": rounds.tolist(), "curves": curves})
    report(len(POLICIES), len(POLICIES))
    return rows


def work(settings: MolarBanditSettings, pool: Pool) -> list[Row]:
    """Runs all trials."""
    horizon, trials = settings.horizon, range(settings.trials)
    jobs = {f"trial-{trial:03d}": partial(run_trial, horizon, trial) for trial in trials}
    if left := pool.left(jobs):
        at_once = min(pool.at_once, len(left))
        what = f"playing trials of {horizon} rounds, {at_once} at once,"
        check_room(what, at_once * trial_size(horizon), "lower --horizon, or --processes")
    return pool.run(jobs)


def report(settings: MolarBanditSettings, done: Sequence[Row]) -> Report:
    """Makes the table and the plots."""
    del settings
    rows = summarize(done)
    return Report([_CAPTION, _table(rows)], {"rows": rows}, {"regret.png": _draw(done)})


def summarize(done: Sequence[Row]) -> list[Row]:
    """Returns a row for each policy and task, where task is a name of ``SHOWN``, or ``mean``.

    It has ``activation``, the task's probability (the mean of all), ``regret`` in the last round,
    ``interval`` (None for one trial), and ``of-ols``, the regret as a ratio to the OLS bandit's.
    """
    rows: list[Row] = []
    final = {  # by policy, of trials and tasks
        name: np.array([trial["errors"] for trial in trials])
        for (name,), trials in grouped(done, "policy").items()
    }
    for name, found in final.items():
        for task in (*SHOWN, "mean"):
            some = [SHOWN[task]] if task in SHOWN else range(TASKS)
            mean, half = mean_and_error(found[:, some].mean(axis=1), 1.96)
            ols = final["ols"][:, some].mean(axis=1)
            rows.append(
                {
                    "policy": name,
                    "task": task,
                    "activation": float(ACTIVATION[some].mean()),
                    "trials": len(found),
                    "regret": float(mean),
                    "interval": None if half is None else float(half),
                    "of-ols": float(mean / ols.mean()) if ols.any() else None,
                }
            )
    return rows


def _table(rows: Sequence[Row]) -> Table:
    tasks = [f"{task}, {ACTIVATION[m]:.2f}" for task, m in SHOWN.items()]
    found = new_table(["policy"], [*tasks, "all tasks", "of OLSB"])
    for (name,), own in grouped(rows, "policy").items():
        cells = [plus_minus(row["regret"], row["interval"], 1) for row in own]
        found.add_row(POLICIES[name][0], *cells, plus_minus(own[-1]["of-ols"], None))
    return found


def _draw(done: Sequence[Row]) -> bytes:
    regrets: dict[str, list[Curve]] = {}
    for (name,), trials in grouped(done, "policy").items():
        for task, m in SHOWN.items():
            own = np.array([trial["curves"][task] for trial in trials])
            mean, half = mean_and_error(own, 1.96)
            limits = (None, None) if half is None else (mean - half, mean + half)
            curve = Curve(POLICIES[name][0], trials[0]["rounds"], mean, *limits)
            regrets.setdefault(f", p = {ACTIVATION[m]:.3f}", []).append(curve)
    x, kind = "round (p: the task's probability of activation)", "mean of trials, and 95 % interval"
    return image_of(draw_multiples(regrets, (x, "regret"), own=kind, marked=[POLICIES["ols"][0]]))
