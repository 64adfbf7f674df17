"""Figure 4 of the MOLAR paper, and its end in a table, of what was measured."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from rich import box
from rich.table import Table

from simulations.reproduce.molar_bandit import ACTIVATION, POLICIES, SHOWN
from simulations.reproduce.report import COLORS, Row, png

__all__ = ["CAPTION", "draw_figures", "interval", "summary", "table"]

Array = npt.NDArray[np.float64]

CAPTION: Final = """\
Cumulative regret of the tasks with the largest, the middle and the smallest
probability of activation, and the mean over all 20 tasks: mean over trials
± half the 95 % interval; and the latter beside OLSB's"""


def interval(trials: Array) -> tuple[Array, Array | None]:
    """Returns the mean over trials, and half the width of its normal 95 % interval.

    Args:
        trials: Shape (r, ...), one row a trial.

    Returns:
        Both of shape (...); no interval of a single trial.
    """
    mean = np.asarray(trials.mean(axis=0))
    if len(trials) == 1:
        return mean, None
    return mean, np.asarray(1.96 * trials.std(axis=0, ddof=1) / np.sqrt(len(trials)))


def summary(done: Sequence[Row]) -> list[Row]:
    """Returns a row for each policy and task, where task is a name of ``SHOWN``, or ``mean``.

    It has ``activation``, the task's probability (the mean of all), ``regret`` in the last round,
    ``interval`` (None for one trial), and ``of-ols``, the regret as a ratio to the OLS bandit's.
    """
    rows: list[Row] = []
    baseline = _final(done, "ols")
    for name in POLICIES:
        for (task, found), own in zip(_final(done, name).items(), baseline.values(), strict=True):
            mean, half = interval(found)
            rows.append(
                {
                    "policy": name,
                    "task": task,
                    "activation": float(
                        ACTIVATION[SHOWN[task]] if task in SHOWN else ACTIVATION.mean()
                    ),
                    "trials": len(done),
                    "regret": float(mean),
                    "interval": None if half is None else float(half),
                    "of-ols": float(mean / own.mean()) if own.any() else None,
                }
            )
    return rows


def _final(done: Sequence[Row], name: str) -> dict[str, Array]:
    """Returns a policy's regrets in the end, by task, each (trials,)."""
    found = np.array([trial["policies"][name]["regret"] for trial in done])
    return {**{task: found[:, m] for task, m in SHOWN.items()}, "mean": found.mean(axis=1)}


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Returns the rows as a table; ``CAPTION`` says what they are."""
    found = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    found.add_column("policy", no_wrap=True)
    for task, m in SHOWN.items():
        found.add_column(f"{task}, {ACTIVATION[m]:.2f}", justify="right", no_wrap=True)
    found.add_column("all tasks", justify="right", no_wrap=True)
    found.add_column("of OLSB", justify="right", no_wrap=True)
    for name, policy in POLICIES.items():
        own = [row for row in rows if row["policy"] == name]
        ratio = own[-1]["of-ols"]
        cells = [_with_interval(row["regret"], row["interval"]) for row in own]
        found.add_row(policy.title, *cells, "-" if ratio is None else f"{ratio:.2f}")
    return found


def _with_interval(regret: float, half: float | None) -> str:
    return f"{regret:.1f}" + ("" if half is None else f" ± {half:.1f}")


def draw_figures(done: Sequence[Row]) -> dict[str, bytes]:
    """Draws regret against rounds, with 95 % intervals; returns it as PNG, by its file's name."""
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    panels = figure.subplots(1, len(SHOWN))
    rounds = done[0]["rounds"]
    for axes, (task, m) in zip(panels, SHOWN.items(), strict=True):
        for color, (name, policy) in zip(COLORS, POLICIES.items(), strict=False):
            curves = np.array([trial["policies"][name]["curves"][task] for trial in done])
            mean, half = interval(curves)
            axes.plot(rounds, mean, color=color, label=policy.title)
            if half is not None:
                axes.fill_between(rounds, mean - half, mean + half, color=color, alpha=0.15, lw=0)
        axes.set(
            xlabel="round", title=f"activation probability {ACTIVATION[m]:.3f}", ylim=(0, None)
        )
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(f"cumulative regret: mean of {len(done)} trials, 95 % interval")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
    return {"regret.png": png(figure)}
