"""Figures 4, 5, 6 and 10 of the MOLAR paper, and tables of regrets."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from rich.table import Table

from engram.cli.console import new_table, plus_minus
from engram.compare.figures import image_of
from engram.compare.panel_plots import Curve, draw_multiples
from engram.core.arrays import Array
from engram.core.machine import check_room
from engram.data.schema.declared import declare
from engram.data.tables.tables import read_table
from engram.scoring.intervals import mean_and_error
from engram.settings.data import DataSettings
from engram.settings.errors import DataError
from engram.simulations.job_pool import Pool, Progress, Row
from engram.studies.study import Report
from engram.studies.summaries import grouped
from engram.tables.bandits.environments import TaskEnvironment, replay, sparse_environments
from engram.tables.bandits.policies import (
    lasso_bandit,
    molar_bandit,
    ols_bandit,
    play_tasks,
    robust_multitask_bandit,
    trace_norm_bandit,
)
from engram.tables.bandits.site import History, TaskBandit
from engram.tables.site import Rows, estimate_site
from engram.tables.studies.contenders import GRID
from engram.tables.studies.preparation import complete, independent
from engram.tables.studies.settings import MolarBanditSettings, table_source
from engram.tables.tables import distinct, rows_of_tasks

_CAPTION: Final = """\
Cumulative regret of the tasks with the largest, the middle and the smallest
probability of activation, and the mean over all tasks: mean over trials ± half
the 95 % interval; and the latter beside OLSB's"""
TASKS: Final = 20
DIM: Final = 30
ARMS: Final = 3
SIGMA: Final = 0.5  # of the noise; known to MOLARB, since the others' constants are tuned to it

_ACTIVATION, _WORLD, _TIES = 2, 101, 102  # keys of random streams

# A draw of 20 uniform numbers whose smallest, 0.055, and largest, 0.967, are about as expected.
ACTIVATION: Final = np.random.default_rng(_ACTIVATION).uniform(size=TASKS)

_SHOWN: Final = ("largest", "middle", "smallest", "mean")
_POINTS: Final = 250  # of a curve
_PLAYED, _TESTED = 0.15, 0.8  # of a table's rows (J.2); the paper chooses constants by the rest


class Player(NamedTuple):
    """A policy of a figure."""

    title: str  # of several with the same title, the one with the least regret is shown
    policy: TaskBandit[Any, Any]
    first: int = 1  # |H_0|, rounds of the first batch


_OLS: Final = {"ols": Player("OLSB", ols_bandit())}
POLICIES: Final = {
    **_OLS,
    "lasso": Player("LASSOB", lasso_bandit()),
    "trace-norm": Player("TNB", trace_norm_bandit()),
    "robust-multitask": Player("RMB", robust_multitask_bandit()),
    "molar": Player("MOLARB", molar_bandit(sigma=SIGMA)),
}
_TUNED: Final[dict[str, Callable[..., TaskBandit[Any, Any]]]] = {
    "LASSOB": lasso_bandit,
    "TNB": trace_norm_bandit,
    "RMB": robust_multitask_bandit,
    "MOLARB": partial(molar_bandit, option="soft"),
}
_HISTORIES: Final[tuple[History, ...]] = ("batch", "all")
FIGURES: Final = {
    4: POLICIES,
    5: _OLS
    | {f"{t} {c:g}": Player(t, make(c=c)) for (t, make), c in product(_TUNED.items(), GRID)},
    10: _OLS
    | {
        (name := f"c = {c:g}, |H0| = {first}, {kept}"): Player(
            name, molar_bandit(c=c / SIGMA, sigma=SIGMA, history=kept), first
        )
        for c, first, kept in product((0.175, 0.35, 0.5, 1.0), (1, 5, 10), _HISTORIES)
    },
}


def tasks_shown(activation: Sequence[float] | Array) -> dict[str, int]:
    """Returns the tasks with curves: those activated most, least, and between."""
    order = np.argsort(-np.asarray(activation), kind="stable").tolist()
    return dict(zip(_SHOWN, (order[0], order[len(order) // 2], order[-1]), strict=False))


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


@cache
def read_tasks(path: Path, task: str, target: str) -> dict[str, Rows]:
    """Reads a table; returns its tasks' rows with an intercept, standardized over all tasks.

    Missing values are 0, with a column that marks them (J.2).
    """
    given = DataSettings.model_validate({"target_column": target, "task_column": task})
    read = read_table(table_source(path), declare(given), family="linear")
    table, _ = independent(complete(read, "linear", indicators=True))
    names, codes = distinct(table.labels)
    x, y = ((values - values.mean(axis=0)) / values.std(axis=0) for values in (table.x, table.y))
    rows = rows_of_tasks(x, y, None, codes, names)
    return {str(name): own.with_ones() for name, own in zip(names, rows, strict=True)}


def table_worlds(tasks: dict[str, Rows], horizon: int, trial: int) -> list[TaskEnvironment]:
    """Draws environments of a table's tasks (J.2), where two rows are the arms.

    A task plays 15 % of its rows, the largest in every round; least squares on 80 % counts regret.

    Raises:
        DataError: If a task has too few rows.
    """
    largest, drawn = max(len(rows.y) for rows in tasks.values()), []
    horizon = min(horizon, max(1, int(_PLAYED * largest) // 2))
    rngs = np.random.default_rng([_WORLD, trial]).spawn(len(tasks))
    for (name, rows), rng in zip(tasks.items(), rngs, strict=True):
        size, order = len(rows.y), rng.permutation(len(rows.y))
        reference = estimate_site(rows.take(order[-int(_TESTED * size) :]))
        if not np.isfinite(reference.sigma):  # else coefficients that it cannot know are 0
            raise DataError(f"task {name} has {size} rows: 80 % are too few to count regret by")
        played, p = rows.take(order[: int(_PLAYED * size)]), size / largest
        drawn.append(replay(rng, played, reference.coef, activation=p, horizon=horizon))
    return drawn


def regrets(player: Player, drawn: list[TaskEnvironment], trial: int) -> Array:
    """Plays a trial; returns the cumulative regret of each task after each round, (M, T)."""
    rngs = np.random.default_rng([_TIES, trial]).spawn(len(drawn))
    return play_tasks(player.policy, drawn, rngs, first=player.first)


def trial_size(horizon: int) -> int:
    """Bytes of memory for the worlds of a trial, mostly contexts."""
    # 1.4 times the contexts was measured, with the arrays that a batch computes from them.
    return int(2 * ACTIVATION.sum() * horizon * ARMS * DIM * 8)


def run_trial(settings: MolarBanditSettings, trial: int, report: Progress) -> list[Row]:
    """Draws a trial's worlds, and plays all policies of the figure in them.

    All randomness depends on the trial's number.

    Returns:
        A row for each policy: ``policy``, ``trial``; ``errors``, the final regret of each task;
        ``rounds``, at which curves have points, and ``curves``, by the names of ``tasks_shown``;
        and, of a table's tasks, the probability of ``activation`` by name.
    """
    horizon, players, tasks = settings.horizon, FIGURES[settings.figure], dict[str, Rows]()
    if settings.table is not None:
        tasks = read_tasks(settings.table, settings.task, settings.target)
    largest = max((len(rows.y) for rows in tasks.values()), default=0)
    activation = {name: len(rows.y) / largest for name, rows in tasks.items()}
    drawn = table_worlds(tasks, horizon, trial) if tasks else worlds(horizon, trial)
    horizon = len(drawn[0].active)
    rounds = np.unique(np.linspace(1, horizon, _POINTS).round().astype(int))
    shown = tasks_shown([*activation.values()] or ACTIVATION)
    rows = []
    for done, (name, player) in enumerate(players.items()):
        report(done, len(players))
        found = regrets(player, drawn, trial)
        curves = {task: found[m, rounds - 1].tolist() for task, m in shown.items()}
        row = {"policy": name, "trial": trial, "errors": found[:, -1].tolist()}
        row |= {"activation": activation} if tasks else {}
        rows.append({**row, "rounds": rounds.tolist(), "curves": curves})
    report(len(players), len(players))
    return rows


def work(settings: MolarBanditSettings, pool: Pool) -> list[Row]:
    """Runs all trials."""
    horizon, trials = settings.horizon, range(settings.trials)
    jobs = {f"trial-{trial:03d}": partial(run_trial, settings, trial) for trial in trials}
    if settings.table is None and (left := pool.left(jobs)):
        at_once = min(pool.at_once, len(left))
        what = f"playing trials of {horizon} rounds, {at_once} at once,"
        check_room(what, at_once * trial_size(horizon), "lower --horizon, or --processes")
    return pool.run(jobs)


def report(settings: MolarBanditSettings, done: Sequence[Row]) -> Report:
    """Makes the table and the plots, with each policy's best constant."""
    rows, players = summarize(done), FIGURES[settings.figure]
    means = {row["policy"]: row["regret"] for row in rows if row["task"] == "mean"}
    best = {players[name].title: name for name in sorted(means, key=means.__getitem__)[::-1]}
    shown = [row for row in rows if row["policy"] in best.values() and row["task"] in _SHOWN]
    drawn = [row for row in done if row["policy"] in best.values()]
    pictures = {"regret.png": _draw(drawn, players)}
    return Report([_CAPTION, _table(shown, players)], {"rows": rows}, pictures)


def summarize(done: Sequence[Row]) -> list[Row]:
    """Returns a row for each policy and task, a name of ``tasks_shown``, ``mean``, or a table's.

    It has ``activation``, the task's probability (the mean of all), ``regret`` in the last round,
    ``interval`` (None for one trial), and ``of-ols``, the regret as a ratio to the OLS bandit's.
    """
    rows: list[Row] = []
    named = done[0].get("activation", {})
    activation = np.array([*named.values()] or ACTIVATION)
    places = {task: [m] for m, task in enumerate(named)}
    places |= {task: [m] for task, m in tasks_shown(activation).items()}
    places["mean"] = [*range(len(activation))]
    final = {  # by policy, of trials and tasks
        name: np.array([trial["errors"] for trial in trials])
        for (name,), trials in grouped(done, "policy").items()
    }
    for name, found in final.items():
        for task, some in places.items():
            mean, half = mean_and_error(found[:, some].mean(axis=1), 1.96)
            ols = final["ols"][:, some].mean(axis=1)
            rows.append(
                {
                    "policy": name,
                    "task": task,
                    "activation": float(activation[some].mean()),
                    "trials": len(found),
                    "regret": float(mean),
                    "interval": None if half is None else float(half),
                    "of-ols": float(mean / ols.mean()) if ols.any() else None,
                }
            )
    return rows


def _table(rows: Sequence[Row], players: Mapping[str, Player]) -> Table:
    policies = grouped(rows, "policy")
    *first, _ = next(iter(policies.values()))
    tasks = [f"{row['task']}, {row['activation']:.2f}" for row in first]
    found = new_table(["policy"], [*tasks, "all tasks", "of OLSB"])
    for (name,), own in policies.items():
        cells = [plus_minus(row["regret"], row["interval"], 1) for row in own]
        found.add_row(players[name].title, *cells, plus_minus(own[-1]["of-ols"], None))
    return found


def _draw(done: Sequence[Row], players: Mapping[str, Player]) -> bytes:
    regrets: dict[str, list[Curve]] = {}
    activation = np.array([*done[0].get("activation", {}).values()] or ACTIVATION)
    policies = grouped(done, "policy")
    several = len(policies) <= len(POLICIES)  # else the figure has room for one task
    for (name,), trials in policies.items():
        for task, m in [*tasks_shown(activation).items()][: None if several else 1]:
            own = np.array([trial["curves"][task] for trial in trials])
            mean, half = mean_and_error(own, 1.96)
            limits = (None, None) if half is None else (mean - half, mean + half)
            curve = Curve(players[name].title, trials[0]["rounds"], mean, *limits)
            regrets.setdefault(f", p = {activation[m]:.3f}", []).append(curve)
    x, kind = "round (p: the task's probability of activation)", "mean of trials, and 95 % interval"
    return image_of(draw_multiples(regrets, (x, "regret"), own=kind, marked=[players["ols"].title]))
