"""Shared parts of both experiments' reports: rows over seeds, and plots of convergence."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import EngFormatter

from engram.meta.studies.jobs import MATCHED
from engram.meta.studies.methods import METHODS
from engram.simulations.job_pool import Row
from engram.studies.figures import COLORS, draw_band, finish, log_ticks, panels
from engram.studies.summaries import grouped


def title_of(name: str) -> str:
    """Returns the title of runs by their name."""
    return "MAML, v1's eta" if name == MATCHED else METHODS[name].title


def by_name(done: Sequence[Row]) -> dict[tuple[int, str], list[Row]]:
    """Returns the runs by batch size and name: one for each seed."""
    return grouped(done, "batch-size", "name")


def figures_of(name: str, runs: Sequence[Row]) -> Row:
    """Summarizes runs that differ only in their seeds.

    ``iterations`` counts local steps, as the paper does; ``train-error`` is infinite if a run
    diverged, and ``diverged`` counts those; ``ms`` is the time of one iteration of one seed, in a
    sweep of several.
    """
    first, local_steps = runs[0], METHODS[runs[0]["method"]].local_steps
    last = [run["errors"][-1] for run in runs]
    return {
        "method": name,
        "beta": first["beta"],
        "eta": first["eta"],
        "runs": len(runs),
        "iterations": first["iterations"] * local_steps,
        "diverged": sum(not math.isfinite(error) for error in last),
        "train-error": float(np.mean(last)),
        "ms": 1e3 * first["seconds"] / local_steps,
    }


def cells(row: Row, tested: str) -> list[str]:
    """Returns the first cells of a table's row: the method, its step sizes, and its test result."""
    found = f"{row['diverged']} diverged" if row["diverged"] else tested
    return [title_of(row["method"]), f"{row['beta']:g}", f"{row['eta']:g}", found]


def draw_convergence(done: Sequence[Row], label: str, *, log: bool) -> bytes:
    """Plots the error on training tasks against rows seen, as PNG: Figure 1 of the MOML paper."""
    groups = by_name(done)
    sizes = sorted({size for size, _ in groups})
    figure, all_axes = panels(len(sizes), size=(1.5 + 5 * len(sizes), 4.5))
    for axes, size in zip(all_axes, sizes, strict=True):
        named = {name: runs for (k, name), runs in groups.items() if k == size}
        for color, (name, runs) in zip(COLORS, named.items(), strict=False):
            curves = np.array([run["errors"] for run in runs], dtype=float)
            curves[~np.isfinite(curves)] = np.nan
            line = {"ls": "--" if name == MATCHED else "-", "color": color, "label": title_of(name)}
            low, high = curves.min(0), curves.max(0)
            draw_band(axes, runs[0]["samples"], curves.mean(0), low, high, **line)
        axes.set(xlabel="samples", title=f"K = {size}")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        if log:
            log_ticks(axes, (1, 2, 3, 4, 6))
    all_axes[0].set_ylabel(f"{label}: mean over seeds, and their range")
    return finish(figure, all_axes[0])
