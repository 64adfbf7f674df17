"""Small multiples: a panel for each curve."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from engram.compare import figures
from engram.core.arrays import Array, Bools

_WIDEST: Final = 5  # most panels side by side
_LONG: Final = 26  # letters of a title that one line of a panel holds
_NARROW: Final = 3  # in one column of a paper
_MARKS: Final = ("--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
_OWN, _OTHERS, _ALIKE = "tab:blue", "0.65", "0.45"
_LESS, _MORE = "tab:green", "tab:red"


class Curve(NamedTuple):
    """A mean over several runs, and a band around it.

    Attributes:
        title: What its panel is called.
        x: Where it is known, shape (r,).
        mean: Shape (r,).
        low: The band's lower limit, shape (r,); None without a band.
        high: Its upper limit.
        color: In its own panel.
    """

    title: str
    x: Sequence[float]
    mean: Array
    low: Array | None = None
    high: Array | None = None
    color: str = _OWN


def curve_of(title: str, x: Sequence[float], values: Array, color: str = _OWN) -> Curve:
    """Returns the mean of several runs (runs, r), with a band from the lowest to the highest."""
    low, high = (values.min(axis=0), values.max(axis=0)) if len(values) > 1 else (None, None)
    return Curve(title, x, values.mean(axis=0), low, high, color)


def draw_multiples(
    groups: Mapping[str, Sequence[Curve]],
    labels: tuple[str, str],
    *,
    own: str,
    marked: Sequence[str] = (),
    log: bool = False,
    narrow: bool = False,
) -> Figure:
    """Draws a panel for each curve: in color, on the means of the others of its group in gray.

    Args:
        groups: Curves that are compared with each other, by what their panels' titles end with:
            one group, or several with the same titles, each of which is a row of panels.
        labels: Those of the two axes.
        own: What a panel's own line and band are, for the legend.
        marked: Titles of curves that are drawn in every panel as black broken lines.
        log: Whether the vertical axis is logarithmic; it begins where the lowest curve or band is
            after a tenth of ``x``.
        narrow: Whether fewer panels than usual stand side by side.
    """
    widest = _NARROW if narrow else _WIDEST
    figure, rows = _panels(groups, labels, "row" if len(groups) > 1 else "all", widest)
    styles = dict(zip(marked, cycle(_MARKS), strict=False))
    for panels, (name, curves) in zip(rows, groups.items(), strict=True):
        for axes, mine in zip(panels, curves, strict=True):
            for other in curves:
                look: dict[str, Any] = {"color": _OTHERS, "lw": 0.8, "zorder": 1.5}
                if other.title in styles:
                    look = {"color": "black", "lw": 1.0, "ls": styles[other.title], "zorder": 1.7}
                axes.plot(other.x, other.mean, **look)
            _draw_band(axes, mine, mine.color)
            axes.plot(mine.x, mine.mean, color=mine.color, lw=1.3, marker=_marker(mine))
            apart = narrow or len(mine.title) > _LONG
            title = mine.title.replace(" + ", "\n+ ").replace(", ", ",\n") if apart else mine.title
            axes.set_title(f"{title}{name}", fontsize="medium")
        end_ticks(panels[0], curves, 4)
        if log:  # panels of a row share their axis
            lowest = [(c, c.mean if c.low is None else c.low) for c in curves]
            tenths = [np.interp(max(c.x) / 10, c.x, low) for c, low in lowest]
            figures.log_ticks(panels[0], (1, 2, 5))
            panels[0].set_ylim(bottom=min((t for t in tenths if t > 0), default=None))
    first = next(iter(groups.values()))[0].color
    handles: list[Any] = [
        (Line2D([], [], color=first, lw=1.3), Patch(color=first, alpha=0.3, lw=0))
    ]
    lines = [Line2D([], [], color="black", lw=1, ls=style) for style in styles.values()]
    gray = Line2D([], [], color=_OTHERS)
    return _explained(figure, [*handles, *lines, gray], [own, *styles, "means of the others"])


def draw_differences(
    groups: Mapping[str, Sequence[Curve]], labels: tuple[str, str], *, kind: str
) -> Figure:
    """Draws a panel for each difference, with its interval in color where it excludes zero.

    Each has a vertical axis of its own, or small differences would be lost beside large ones.

    Args:
        groups: Differences, less being better, with their intervals; as in ``draw_multiples``.
        labels: Those of the two axes.
        kind: What the band is, for the legend.
    """
    figure, rows = _panels(groups, labels, "none", _WIDEST)
    for panels, (name, curves) in zip(rows, groups.items(), strict=True):
        for axes, mine in zip(panels, curves, strict=True):
            axes.axhline(0, color="black", lw=0.8)
            if mine.low is None or mine.high is None:
                axes.plot(mine.x, mine.mean, color=_ALIKE, marker=_marker(mine))
            else:
                _draw_band(axes, mine, _ALIKE)
                _draw_band(axes, mine, _LESS, mine.high < 0)
                _draw_band(axes, mine, _MORE, mine.low > 0)
                axes.plot(mine.x, mine.mean, color="black", lw=1.2, marker=_marker(mine))
            axes.set_title(f"{mine.title}{name}", fontsize="medium")
    said = {_LESS: "less", _MORE: "more", _ALIKE: "not told apart"}
    handles: list[Any] = [Line2D([], [], color="black", lw=1.2)]
    handles += [Patch(color=color, alpha=0.5, lw=0) for color in said]
    return _explained(figure, handles, [kind, *said.values()])


def _panels(
    groups: Mapping[str, Sequence[Curve]],
    labels: tuple[str, str],
    share: Literal["none", "row", "all"],
    widest: int,
) -> tuple[Figure, list[list[Axes]]]:
    """Returns a figure, and each group's panels: a row of them, or as many as one group needs."""
    count = len(next(iter(groups.values())))
    high = len(groups) if len(groups) > 1 else math.ceil(count / widest)
    wide = count if len(groups) > 1 else math.ceil(count / high)
    size = (1.0 + 2.4 * wide, 1.0 + 2.1 * high)
    figure, axes = figures.panels(wide, high, size=size, sharex=True, sharey=share)
    for each in axes[: count * len(groups)]:
        each.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    for blank in axes[count * len(groups) :]:
        blank.set_axis_off()
        axes[axes.index(blank) - wide].tick_params(labelbottom=True)
    figure.supxlabel(labels[0], fontsize="medium")
    figure.supylabel(labels[1], fontsize="medium")
    return figure, [axes[start : start + count] for start in range(0, count * len(groups), count)]


def end_ticks(axes: Axes, curves: Sequence[Curve], most: int) -> None:
    """Puts ticks along x, of at most so many steps, to where the curves end."""
    last = max((float(x) for curve in curves for x in curve.x), default=0.0)
    if last and last.is_integer():  # else nothing is drawn, or seconds
        ticks = MaxNLocator(most, integer=True).tick_values(0, last)
        axes.set_xticks([*(t for t in ticks if 0 <= t < last - (ticks[1] - ticks[0]) / 2), last])


def _marker(curve: Curve) -> str:
    """Returns the marker of a curve of one point, which no line would show."""
    return "o" if np.isfinite(curve.mean).sum() == 1 else ""


def _draw_band(axes: Axes, curve: Curve, color: str, where: Bools | None = None) -> None:
    if curve.low is not None and curve.high is not None:
        axes.fill_between(curve.x, curve.low, curve.high, where=where, color=color, alpha=0.3, lw=0)


def _explained(figure: Figure, handles: Sequence[Any], texts: Sequence[str]) -> Figure:
    wide, _ = figure.get_size_inches()
    columns = max(1, min(len(texts), int(12 * wide / max(map(len, texts)))))
    figure.legend(handles, texts, loc="outside upper center", ncols=columns, fontsize="small")
    return figure
