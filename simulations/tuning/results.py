"""What a search found, as files: settings for `--config`, a table, and a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich import box
from rich.table import Table

from engram.metrics import Metric
from federation.files import replace_file
from federation.methods import METHODS
from federation.settings.fields import Range, Scalar
from simulations.tuning.record import Trial, best_of
from simulations.tuning.space import Space

__all__ = ["BEST", "draw_trials", "in_toml", "table_of", "trial_rows", "write_best"]

BEST = "best.toml"
_COLORS = {"done": "tab:blue", "dropped": "tab:gray", "going": "tab:gray"}


def trial_rows(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Returns a row for each trial: its settings, its state, and its score of each seed."""
    return [
        {
            "trial": trial.number,
            **trial.settings,
            "state": trial.state,
            "round": trial.round,
            "score": trial.value,
            "seed-std": float(np.std(trial.scores, ddof=1)) if len(trial.scores) > 1 else None,
            "reason": trial.reason,
        }
        for trial in trials
    ]


def in_toml(method: str, settings: Mapping[str, Scalar], *, apart: bool) -> str:
    """Returns settings as lines of TOML.

    Args:
        method: The method.
        settings: By key, the method's own without its name.
        apart: Whether shared settings stand in the method's table, too, as `engram compare` takes
            them for one of several methods; if not, before it, as `engram run` takes them.
    """
    own = METHODS[method].all_keys()
    shared = [] if apart else [key for key in settings if key not in own]
    lines = [f"{key} = {_value(settings[key])}" for key in shared]
    table = [f"{key} = {_value(value)}" for key, value in settings.items() if key not in shared]
    return "\n".join([*lines, f"[{method}]", *table]) + "\n"


def _value(value: Scalar) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, int | float) else f'"{value}"'


def write_best(
    folder: Path, method: str, trials: Sequence[Trial], how: str, metric: Metric
) -> dict[str, Scalar]:
    """Writes the best settings as a file for ``engram run --config``, and returns them."""
    best = best_of(trials, higher=metric.better == "higher")
    if best is None:
        return {}
    words = f"# {how}\n# {_told(best, metric)}\n"
    text = f'{words}method = "{method}"\n{in_toml(method, best.settings, apart=False)}'
    replace_file(folder / BEST, text.encode())
    return best.settings


def _told(trial: Trial, metric: Metric) -> str:
    unit = " %" if metric.percent else ""
    return (
        f"validation {metric.name} {metric.in_words(trial.value)}{unit} after round {trial.round}, "
        f"trial {trial.number}"
    )


def table_of(
    method: str, trials: Sequence[Trial], space: Space, metric: Metric, most: int = 8
) -> Table:
    """Returns a table of the best trials, and of the defaults."""
    higher = metric.better == "higher"
    sign = -1 if higher else 1
    ranked = sorted(
        (t for t in trials if t.value is not None), key=lambda t: (-t.round, sign * (t.value or 0))
    )
    told = ranked[:most] + [t for t in ranked[most:] if t.number == 0]
    unit = " in %" if metric.percent else ""
    dropped, lost = (
        sum(t.state in states for t in trials)
        for states in (("dropped",), ("diverged", "impossible"))
    )
    title = (
        f"{method}: {metric.name}{unit} on validation rows, mean over clients and seeds ± sd over "
        f"seeds;\n{len(trials)} trials, of which {dropped} were dropped early and {lost} failed"
    )
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    for heading in ("trial", *(dimension.key for dimension in space), "round", "score ± sd"):
        table.add_column(heading, justify="right", no_wrap=True)
    for trial in told:
        deviation = float(np.std(trial.scores, ddof=1)) if len(trial.scores) > 1 else None
        table.add_row(
            f"{trial.number}{' (defaults)' if trial.number == 0 else ''}",
            *(str(trial.settings[dimension.key]) for dimension in space),
            str(trial.round),
            f"{metric.in_words(trial.value)} ± {metric.in_words(deviation)}",
        )
    return table


def draw_trials(method: str, trials: Sequence[Trial], space: Space, metric: Metric) -> Figure:
    """Plots every trial's score against each setting that was searched."""
    figure = Figure(figsize=(max(4.5, 3.2 * len(space)), 3.6), layout="constrained")
    grid = figure.subplots(1, len(space), sharey=True, squeeze=False)[0]
    best = best_of(trials, higher=metric.better == "higher")
    scale = 100 if metric.percent else 1
    for axes, dimension in zip(grid, space, strict=True):
        for state, color in _COLORS.items():
            some = [t for t in trials if t.state == state and t.value is not None]
            values = [t.settings[dimension.key] for t in some]
            scores = [scale * (t.value or 0.0) for t in some]
            if not isinstance(dimension.within, Range):
                values = [str(value) for value in values]
            label = {"done": "all rounds", "dropped": "dropped early"}.get(state)
            axes.scatter(values, scores, s=18, color=color, alpha=0.7, label=label)
        for trial, marker, label in ((trials[0], "D", "defaults"), (best, "*", "best")):
            if trial is not None and trial.value is not None:
                value = trial.settings[dimension.key]
                place = value if isinstance(dimension.within, Range) else str(value)
                axes.scatter(
                    [place],
                    [scale * trial.value],
                    s=90,
                    marker=marker,
                    facecolors="none",
                    edgecolors="black",
                    label=label,
                )
        if isinstance(dimension.within, Range) and dimension.within.log:
            axes.set_xscale("log")
        axes.set_xlabel(dimension.key)
        axes.grid(alpha=0.3)
    unit = " (%)" if metric.percent else ""
    grid[0].set_ylabel(f"validation {metric.name}{unit}")
    grid[0].legend(loc="best", framealpha=0.6, fontsize="small")
    figure.suptitle(f"{method}: what was tried")
    return figure
