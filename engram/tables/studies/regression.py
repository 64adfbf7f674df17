"""Figures 2, 3, 7, 8 and 9 of the MOLAR paper from measured errors, and tables of their points."""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
from rich.table import Table

from engram.cli.console import new_table
from engram.compare.figures import COLORS, finish, log_ticks, panels
from engram.scoring.intervals import mean_and_error
from engram.simulations.job_pool import Pool, Row
from engram.studies.study import Report
from engram.studies.summaries import grouped
from engram.tables.studies.regression_trials import FIGURES, METHODS, run_trial
from engram.tables.studies.settings import MolarRegressionSettings

_CAPTION: Final = """\
Mean l1 error of the tasks' coefficients, of OLS; and that of the other methods
(in Figure 3 MOLAR's) as a ratio to it"""


def work(settings: MolarRegressionSettings, pool: Pool) -> list[Row]:
    """Runs all trials of all figures."""
    pairs = product(settings.figures, range(settings.trials))
    trials = {f"figure-{f}-trial-{n}": partial(run_trial, f, FIGURES[f], n) for f, n in pairs}
    return pool.run(trials)


def report(settings: MolarRegressionSettings, done: Sequence[Row]) -> Report:
    """Makes a table and a plot for each figure."""
    del settings
    rows = summarize(done)
    figures = {number: own for (number,), own in grouped(rows, "figure").items()}
    tables = [_table(number, own) for number, own in figures.items()]
    pictures = {f"figure-{number}.png": _draw(own) for number, own in figures.items()}
    return Report([_CAPTION, *tables], {"rows": rows}, pictures)


def summarize(done: Sequence[Row]) -> list[Row]:
    """Returns a row for each point and method, over its trials.

    It has the point's fields and ``figure``; ``method``, ``trials``, ``error``, ``standard-error``
    (None for one trial), and ``of-ols``, the error as a ratio to that of OLS.
    """
    keys = [key for key in done[0] if key not in ("trial", "errors")]
    rows: list[Row] = []
    for values, own in grouped(done, *keys).items():
        baseline = np.mean([trial["errors"]["ols"] for trial in own])
        for method in own[0]["errors"]:
            mean, error = mean_and_error(np.array([trial["errors"][method] for trial in own]))
            rows.append(
                {
                    **dict(zip(keys, values, strict=True)),
                    "method": method,
                    "trials": len(own),
                    "error": float(mean),
                    "standard-error": None if error is None else float(error),
                    "of-ols": float(mean / baseline),
                }
            )
    return rows


class _Curve(NamedTuple):
    label: str
    method: str
    series: str  # of points; empty where each method has a curve
    color: Any

    def of(self, rows: Sequence[Row]) -> list[Row]:
        own = (self.method, self.series)
        return [row for row in rows if (row["method"], row["series"]) == own]


def _curves(rows: Sequence[Row]) -> list[_Curve]:
    series = list(dict.fromkeys(row["series"] for row in rows))
    if series != [""]:
        return [_Curve(name, "molar", name, COLORS[i]) for i, name in enumerate(series)]
    named = {row["method"] for row in rows}
    methods = enumerate(name for name in METHODS if name in named)
    return [_Curve(METHODS[name].title, name, "", COLORS[i]) for i, name in methods]


def _table(number: int, rows: Sequence[Row]) -> Table:
    curves = [curve for curve in _curves(rows) if curve.method != "ols"]
    headings = ["panel", "", "OLS", *(curve.label for curve in curves)]
    found = new_table([], headings, title=f"Figure {number}")
    for (panel,), some in grouped(rows, "panel").items():
        found.add_section()
        for (x,), here in grouped(some, "x").items():
            ols = np.mean([row["error"] for row in here if row["method"] == "ols"])
            ratios = [f"{curve.of(here)[0]['of-ols']:.3f}" for curve in curves]
            found.add_row(panel, str(x), f"{ols:.4f}", *ratios)
    return found


def _draw(rows: Sequence[Row]) -> bytes:
    groups = grouped(rows, "panel")
    figure, all_axes = panels(len(groups), size=(1.5 + 4 * len(groups), 4))
    for axes, ((panel,), some) in zip(all_axes, groups.items(), strict=True):
        for curve in _curves(rows):
            own = curve.of(some)
            axes.errorbar(
                [row["x"] for row in own],
                [row["error"] for row in own],
                yerr=[row["standard-error"] or 0.0 for row in own],
                fmt="o--" if curve.method == "lasso" else "o-",  # lets OLS be seen below it
                ms=3,
                lw=1.2,
                capsize=2,
                color=curve.color,
                label=curve.label,
            )
        if some[0]["series"]:
            axes.set(title=panel, xlabel="d", xlim=(0, None), ylim=(0, None))
        else:
            axes.set(title=_fixed(some[0]), xlabel=panel)
            log_ticks(axes, (1, 2, 5))
    all_axes[0].set_ylabel(f"l1 error: mean of {rows[0]['trials']} trials, standard error")
    return finish(figure, all_axes[0])


def _fixed(row: Row) -> str:
    values = {"n": row["size"], "M": row["tasks"], "s": row["differing"]}
    return ", ".join(f"{name} = {n:,}" for name, n in values.items() if name != row["panel"])
