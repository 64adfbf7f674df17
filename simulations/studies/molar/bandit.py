"""Figure 4 of the MOLAR paper from measured runs, with a table of final regrets."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np
from rich.table import Table

from engram.arrays import Array
from simulations.pool import Pool, Row
from simulations.studies.figures import COLORS, draw_band, finish, new_table, panels, plus_minus
from simulations.studies.molar.bandit_trials import (
    ACTIVATION,
    POLICIES,
    SHOWN,
    check_room,
    run_trial,
)
from simulations.studies.molar.settings import MolarBanditSettings
from simulations.studies.study import Report
from simulations.studies.summaries import grouped, mean_and_error

_CAPTION: Final = """\
Cumulative regret of the tasks with the largest, the middle and the smallest
probability of activation, and the mean over all 20 tasks: mean over trials
± half the 95 % interval; and the latter beside OLSB's"""


def work(settings: MolarBanditSettings, pool: Pool) -> list[Row]:
    """Runs all trials."""
    horizon, trials = settings.horizon, range(settings.trials)
    jobs = {f"trial-{trial:03d}": partial(run_trial, horizon, trial) for trial in trials}
    if left := pool.left(jobs):
        check_room(horizon, min(pool.at_once, len(left)))
    return pool.run(jobs)


def report(settings: MolarBanditSettings, done: Sequence[Row]) -> Report:
    """Makes the table and the plot."""
    del settings
    rows = summarize(done)
    return Report([_CAPTION, _table(rows)], {"rows": rows}, {"regret.png": _draw(done)})


def summarize(done: Sequence[Row]) -> list[Row]:
    """Returns a row for each policy and task, where task is a name of ``SHOWN``, or ``mean``.

    It has ``activation``, the task's probability (the mean of all), ``regret`` in the last round,
    ``interval`` (None for one trial), and ``of-ols``, the regret as a ratio to the OLS bandit's.
    """
    rows: list[Row] = []
    final = {name: _final(trials) for (name,), trials in grouped(done, "policy").items()}
    for name, of in final.items():
        for task, found in of.items():
            mean, half = mean_and_error(found, 1.96)
            own, ols = SHOWN.get(task), final["ols"][task]
            rows.append(
                {
                    "policy": name,
                    "task": task,
                    "activation": float(ACTIVATION.mean() if own is None else ACTIVATION[own]),
                    "trials": len(found),
                    "regret": float(mean),
                    "interval": None if half is None else float(half),
                    "of-ols": float(mean / ols.mean()) if ols.any() else None,
                }
            )
    return rows


def _final(trials: Sequence[Row]) -> dict[str, Array]:
    """Returns a policy's final regrets by task, each (trials,)."""
    found = np.array([trial["errors"] for trial in trials])
    return {**{task: found[:, m] for task, m in SHOWN.items()}, "mean": found.mean(axis=1)}


def _table(rows: Sequence[Row]) -> Table:
    tasks = [f"{task}, {ACTIVATION[m]:.2f}" for task, m in SHOWN.items()]
    found = new_table(["policy"], [*tasks, "all tasks", "of OLSB"])
    for (name,), own in grouped(rows, "policy").items():
        cells = [plus_minus(row["regret"], row["interval"], 1) for row in own]
        found.add_row(POLICIES[name].title, *cells, plus_minus(own[-1]["of-ols"], None))
    return found


def _draw(done: Sequence[Row]) -> bytes:
    """Plots regret against rounds, with 95 % intervals."""
    figure, all_axes = panels(len(SHOWN), size=(13, 4.2))
    policies = grouped(done, "policy")
    for axes, (task, m) in zip(all_axes, SHOWN.items(), strict=True):
        for color, ((name,), trials) in zip(COLORS, policies.items(), strict=False):
            mean, half = mean_and_error(np.array([trial["curves"][task] for trial in trials]), 1.96)
            limits = (None, None) if half is None else (mean - half, mean + half)
            label = POLICIES[name].title
            draw_band(axes, trials[0]["rounds"], mean, *limits, color=color, label=label)
        axes.set(
            xlabel="round", title=f"activation probability {ACTIVATION[m]:.3f}", ylim=(0, None)
        )
    count = len(policies["ols",])
    all_axes[0].set_ylabel(f"cumulative regret: mean of {count} trials, 95 % interval")
    return finish(figure, all_axes[0])
