"""Gains of each client by a method over the references: by itself, and by the global model."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from engram.compare.claims import scores_of
from engram.compare.comparison_folder import Runs, is_reference
from engram.compare.differences import Scores, pairwise
from engram.compare.figures import panels
from engram.compare.report_rows import models_of
from engram.scoring.intervals import Interval
from engram.scoring.metrics import Metric

_Line = tuple[str, str, str]  # a method, its label, and which of its models


class Dots(NamedTuple):
    """A line of dots: a figure of each client, as people are shown it.

    Attributes:
        method: Of the model.
        seeds: Each client's figure, by seed; NaN without one.
        mean: The mean with its interval, where that is marked.
    """

    method: str
    seeds: Scores
    mean: Interval | None = None


def draw_gains(
    runs: Runs,
    metric: Metric,
    beside: Mapping[str, Scores] = MappingProxyType({}),
    *,
    narrow: bool = False,
) -> Figure | None:
    """Draws each client's gain, one panel for each reference and one line for each other model.

    A dot is a client of a seed, on its test rows, each run at its best round;
    the mark is the mean, with its interval, and the figure at the right says how many clients gain.
    The intervals are those of ``engram.compare.claims``: all of a comparison hold together.

    Returns:
        The figure; None without references and something to compare with them.
    """
    found = gains_of(runs, metric, beside)
    if not found:
        return None
    names = list(next(iter(found.values())))
    high, wide = (len(found), 1) if narrow else (1, len(found))
    size = (4.6 * wide + 1, (1.5 + 0.45 * len(names)) * high)
    figure, each = panels(wide, high, size=size, grid="x", sharey=True)
    points = " (points)" if metric.percent else ""
    for axes, (reference, gains) in zip(each, found.items(), strict=True):
        axes.axvline(0, color="black", lw=0.8)
        axes.set(title=f"over {reference}", xlabel=f"gain in {metric.name}{points}")
        rng = np.random.default_rng(0)  # jitter, so that dots do not overlap
        for line, gain in enumerate(gains.values()):
            _draw_line(axes, line, gain, rng)
    end = "\n" if narrow else " "
    dots = (
        f"each dot: a client of a seed, at the best round;{end}black: mean, "
        "with its simultaneous 95 % interval"
    )
    figure.suptitle(dots, fontsize="small")
    each[0].set_yticks(range(len(names)), names)
    each[0].invert_yaxis()
    return figure


def gains_of(
    runs: Runs, metric: Metric, beside: Mapping[str, Scores] = MappingProxyType({})
) -> dict[str, dict[str, Dots]]:
    """Returns the gains of clients by reference and model; none without something to compare.

    They are positive where a client is better off, and as people are shown them. The intervals are
    those of ``engram.compare.claims``, with scores without a network ``beside`` the runs'.
    """
    references, others = gain_lines(runs)
    scores = scores_of(runs, metric, beside)
    pairs, scale = pairwise(scores), metric.scale * metric.sign
    found: dict[str, dict[str, Dots]] = {}
    for _, reference, _ in references if others else ():
        found[reference] = {}
        for method, label, _ in others:
            both = zip(scores[label], scores[reference], strict=True)
            gap = pairs[label, reference]
            ends = (gap if metric.sign > 0 else gap.turned)[:3]
            interval = Interval(*(metric.scale * end for end in ends))
            gains = [scale * (mine - base) for mine, base in both]
            found[reference][label] = Dots(method, gains, interval)
    return found


def gain_lines(runs: Runs) -> tuple[list[_Line], list[_Line]]:
    """Splits models into references and others: (method, label, suffix) each."""
    lines = models_of(runs)
    references = [line for line in lines if is_reference(line[0]) and not line[2]]
    return references, [line for line in lines if line not in references]


def _draw_line(axes: Axes, line: int, gain: Dots, rng: np.random.Generator) -> None:
    gains = np.concatenate(gain.seeds)
    gains = gains[np.isfinite(gains)]
    if not gains.size or gain.mean is None:
        return
    spread = line + rng.uniform(-0.25, 0.25, len(gains))
    color = np.where(gains > 0, "tab:blue", np.where(gains < 0, "tab:red", "tab:gray"))
    axes.scatter(gains, spread, s=9, c=color, alpha=0.35, lw=0)
    mean, low, high = gain.mean
    bars = [[mean - low], [high - mean]] if np.isfinite([low, high]).all() else None
    axes.errorbar(mean, line, xerr=bars, fmt="o", color="black", ms=4, capsize=3, lw=1.2)
    share = f"{np.mean(gains > 0):.0%} gain, {np.mean(gains < 0):.0%} lose"
    at = axes.get_yaxis_transform()
    axes.text(1.01, line, share, transform=at, va="center", fontsize="small", color="dimgray")
