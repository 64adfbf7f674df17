"""Gains of each client by a method over the references: by itself, and by the common model."""

from collections.abc import Mapping
from contextlib import suppress

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from engram.metrics import Metric
from simulations.comparison import Runs, method_of
from simulations.differences import Scores, paired_difference
from simulations.rows import client_scores, shown_models

__all__ = ["draw_gains", "gain_lines"]

_Line = tuple[str, str, str]  # a method, its label, and which of its models


def draw_gains(runs: Runs, metric: Metric) -> Figure | None:
    """Draws each client's gain, one panel for each reference and one line for each other model.

    A dot is a client of a seed, on its test rows, each run in the round that validation rows pick;
    the mark is the mean, with its interval, and the figure at the right says how many clients gain.

    Args:
        runs: Finished runs of the same seeds, by method.
        metric: What is compared.

    Returns:
        The figure; None without references and something to compare with them.
    """
    references, others = gain_lines(runs)
    if not (references and others):
        return None
    scores = {
        label: client_scores(runs[method], metric.name, which)
        for method, label, which in (*references, *others)
    }
    height = 1.5 + 0.45 * len(others)
    figure = Figure(figsize=(4.6 * len(references) + 1, height), layout="constrained")
    panels = figure.subplots(1, len(references), sharey=True, squeeze=False)[0]
    names = [label for _, label, _ in others]
    for axes, (_, reference, _) in zip(panels, references, strict=True):
        _panel(axes, reference, {name: scores[name] for name in names}, scores[reference], metric)
    dots = "each dot: a client of a seed; black: the mean and its 95 % interval"
    figure.suptitle(dots, fontsize=9)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    return figure


def gain_lines(runs: Runs) -> tuple[list[_Line], list[_Line]]:
    """Returns the references and the other models: method, label, and which of its models."""
    references: list[_Line] = []
    others: list[_Line] = []
    for method, records in runs.items():
        shown = shown_models(method, records).items()
        first, *rest = ((method, label, which) for label, which in shown)
        (references if getattr(method_of(method), "reference", False) else others).append(first)
        others += rest
    return references, others


def _panel(
    axes: Axes, reference: str, models: Mapping[str, Scores], base: Scores, metric: Metric
) -> None:
    unit, sign = (100 if metric.percent else 1), (1 if metric.better == "higher" else -1)
    rng = np.random.default_rng(0)  # jitter, so that dots do not overlap
    for line, mine in enumerate(models.values()):
        with suppress(ValueError):  # no client of a seed has both scores, as of a partial metric
            _line(axes, line, mine, base, sign * unit, rng)
    axes.axvline(0, color="black", lw=0.8)
    axes.set(
        title=f"over {reference}",
        xlabel=f"gain in {metric.name}{' (points)' if metric.percent else ''}",
    )
    axes.grid(axis="x", alpha=0.3)


def _line(
    axes: Axes, line: int, mine: Scores, base: Scores, scale: float, rng: np.random.Generator
) -> None:
    """Draws a model's gains over a reference, in units of ``scale``."""
    gains = scale * np.concatenate([a - b for a, b in zip(mine, base, strict=True)])
    gains = gains[np.isfinite(gains)]
    spread = line + rng.uniform(-0.25, 0.25, len(gains))
    color = np.where(gains > 0, "tab:blue", np.where(gains < 0, "tab:red", "tab:gray"))
    axes.scatter(gains, spread, s=9, c=color, alpha=0.35, lw=0)
    found = paired_difference(mine, base)
    mean, low, high = (scale * end for end in found)
    bars = [[abs(mean - low)], [abs(high - mean)]] if np.isfinite([low, high]).all() else None
    axes.errorbar(mean, line, xerr=bars, fmt="o", color="black", ms=4, capsize=3, lw=1.2)
    share = f"{np.mean(gains > 0):.0%} gain"
    at = axes.get_yaxis_transform()
    axes.text(1.01, line, share, transform=at, va="center", fontsize=8, color="dimgray")
