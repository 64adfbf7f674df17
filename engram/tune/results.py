"""Results of a search, as files: settings for `--config`, a table, and a picture."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from rich.table import Table

from engram.cli.console import new_table
from engram.compare.figures import panels
from engram.scoring.intervals import deviation
from engram.scoring.metrics import Metric
from engram.settings.fields import Scalar
from engram.tune.record import Trial, ranked
from engram.tune.search import Search

BEST = "best.toml"
_MOST = 8  # trials in a table
_COLORS = {"done": "tab:blue", "dropped": "tab:gray", "going": "tab:gray"}


def trial_rows(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Returns a row for each trial: its settings, its state, and its score of each seed."""
    keys = {key: None for trial in trials for key in trial.settings}  # some trials lack adapt-lr
    return [
        {"trial": trial.number, **keys, **trial.settings}
        | {"state": trial.state, "round": trial.round}
        | {"score": trial.value, "seed-std": deviation(trial.scores), "reason": trial.reason}
        for trial in trials
    ]


def in_toml(settings: Mapping[str, Scalar]) -> str:
    """Returns settings as TOML: those that are called ``TABLE.key`` in tables, after the others."""
    tables: dict[str, list[str]] = {"": []}
    for key, value in settings.items():
        table, _, own = key.rpartition(".")
        tables.setdefault(table, []).append(f"{own} = {json.dumps(value, ensure_ascii=False)}\n")
    return "\n".join(
        "".join([f"[{table}]\n" if table else "", *lines]) for table, lines in tables.items()
    )


def in_one_file(
    first: Sequence[Mapping[str, Scalar]], best: Mapping[str, Mapping[str, Scalar]]
) -> dict[str, Scalar]:
    """Returns the settings of several methods as `engram compare` takes them.

    Args:
        first: Settings of a run of each method, before any was searched.
        best: By method, settings of a run with the best ones; its own are ``METHOD.key``.

    Returns:
        The shared settings that all methods were given alike, and then each method's others, as
        ``METHOD.key``.
    """
    shared = {
        key: value
        for key, value in first[0].items()
        if not (key == "method" or "." in key) and all(s.get(key) == value for s in first)
    }
    return shared | {
        key if "." in key else f"{name}.{key}": value
        for name, settings in best.items()
        for key, value in settings.items()
        if key not in shared and key != "method"
    }


def told(trial: Trial, metric: Metric) -> str:
    """Returns a trial's score, in words."""
    score = f"validation {metric.name} {metric.with_unit(trial.value)}"
    return f"{score} after round {trial.round}, trial {trial.number}"


def table_of(method: str, trials: Sequence[Trial], plan: Search) -> Table:
    """Returns a table of the best trials of a method, and of the defaults."""
    metric = plan.metric
    scored = ranked(trials, metric.sign)
    told = scored[:_MOST] + [t for t in scored[_MOST:] if t.number == 0]
    unit = " in %" if metric.percent else ""
    dropped, lost = (
        sum(t.state in states for t in trials)
        for states in (("dropped",), ("diverged", "impossible"))
    )
    title = (
        f"{method}: {metric.name}{unit} on validation rows, {metric.center} over clients, and mean "
        f"over seeds ± sd;\n{len(trials)} trials, of which {dropped} were dropped early and {lost} "
        "failed"
    )
    keys = [dimension.key for dimension in plan.space]
    table = new_table([], ["trial", *keys, "round", "score ± sd"], title=title)
    for trial in told:
        table.add_row(
            f"{trial.number}{' (defaults)' if trial.number == 0 else ''}",
            *(str(trial.settings[key]) for key in keys),
            str(trial.round),
            f"{metric.in_words(trial.value)} ± {metric.in_words(deviation(trial.scores))}",
        )
    return table


def draw_trials(method: str, trials: Sequence[Trial], plan: Search) -> Figure:
    """Plots the score of every trial of a method against each setting that was searched."""
    space, metric = plan.space, plan.metric
    figure, grid = panels(len(space), size=(max(4.5, 3.2 * len(space)), 3.6), sharey=True)
    best, scale = plan.best_of(trials), metric.scale
    for axes, dimension in zip(grid, space, strict=True):
        for state, color in _COLORS.items():
            some = [t for t in trials if t.state == state and t.value is not None]
            values = [t.settings[dimension.key] for t in some]
            scores = [scale * (t.value or 0.0) for t in some]
            if dimension.choices:
                values = [str(value) for value in values]
            label = {"done": "all rounds", "dropped": "dropped early"}.get(state)
            axes.scatter(values, scores, s=18, color=color, alpha=0.7, label=label)
        for trial, marker, label in ((trials[0], "D", "defaults"), (best, "*", "best")):
            if trial is not None and trial.value is not None:
                value = trial.settings[dimension.key]
                place = str(value) if dimension.choices else value
                axes.scatter(
                    [place],
                    [scale * trial.value],
                    s=90,
                    marker=marker,
                    facecolors="none",
                    edgecolors="black",
                    label=label,
                )
        if dimension.range and dimension.range.log:
            axes.set_xscale("log")
        axes.set_xlabel(dimension.key)
    grid[0].set_ylabel(f"validation {metric.name}{metric.unit}")
    grid[0].legend(loc="best", framealpha=0.6, fontsize="small")
    figure.suptitle(f"{method}: what was tried")
    return figure
