"""Forest plots, and a table of effects over sites, of any models."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from rich.table import Table as Printed

from engram.cli.console import new_table
from engram.compare.figures import COLORS, panels
from engram.compare.plots import tick_label
from engram.tables.effects.meta_analysis import MetaAnalysis
from engram.tables.effects.summaries import Summaries
from engram.tables.effects.summary import shown_p

MOST: Final = 12  # panels of a figure
_WIDE: Final = 3  # panels beside each other
_LARGEST: Final = 10.0  # side of a site's square, in points
_FAR: Final = 20.0  # widths of the random effects' interval, beyond which an axis is cut


def effects_by_site(model: Summaries, level: float, *, ratios: bool) -> list[MetaAnalysis]:
    """Returns meta-analyses of all columns but those that fewer than two tasks determine."""
    known = np.sum([np.isfinite(s.standard_error) & (s.sigma > 0) for s in model.sites_], axis=0)
    names = [name for name, n in zip(model.column_names, known, strict=True) if n > 1]
    return [model.meta_analysis(name, level=level, ratios=ratios) for name in names]


def draw_forest(effects: Sequence[MetaAnalysis]) -> Figure:
    """Draws sites' estimates, and fixed and random effects below, a panel for each coefficient.

    A square's area is the site's weight in the fixed effect; lines are intervals. Ratios have a
    logarithmic axis.
    """
    effects = effects[:MOST]
    wide = min(_WIDE, len(effects))
    high = -(-len(effects) // wide)
    sites = len(effects[0].sites.names)
    size = (1.5 + 3.2 * wide, high * (1.6 + 0.24 * (sites + 2)))
    figure, each = panels(wide, high, size=size, grid="x", sharey=True)
    for axes, one in zip(each, effects, strict=False):
        _draw_sites(axes, one)
        for k, (estimate, *ends) in enumerate(zip(*one.effects.shown, strict=True)):
            axes.plot(ends, [sites + k] * 2, color=COLORS[k + 1], lw=2)
            axes.plot(estimate, sites + k, "D", color=COLORS[k + 1], ms=6)
        ratio = one.sites.ratio
        axes.axvline(1 if ratio else 0, color="black", lw=0.8)
        if ratio:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_title(one.name, parse_math=False)
        axes.set_xlabel(ratio or "coefficient")
    for axes in each[len(effects) :]:
        axes.set_axis_off()
    labels = [*map(tick_label, effects[0].sites.names), *effects[0].effects.names]
    each[0].set_yticks(range(sites + 2), labels, parse_math=False)
    each[0].invert_yaxis()
    return figure


def _draw_sites(axes: Axes, one: MetaAnalysis) -> None:
    lines, (estimates, lows, highs) = one.sites, one.sites.shown
    known = np.isfinite(lines.error) & (lines.error > 0)
    weights = np.where(known, lines.error, np.inf) ** -2
    for i in np.flatnonzero(known):
        axes.plot([lows[i], highs[i]], [i, i], color=COLORS[0], lw=1.2)
        side = _LARGEST * np.sqrt(weights[i] / weights.max())
        axes.plot(estimates[i], i, "s", color=COLORS[0], ms=max(side, 2.0))
    # One site that knows next to nothing would make all others a point.
    center, (low, high) = one.effects.coef[1], [limits[1] for limits in one.effects.limits]
    ends = lines.printed(center + _FAR * (high - low) * np.array([-1, 1]))
    axes.set_xlim(max(ends[0], lows[known].min()), min(ends[1], highs[known].max()))
    axes.margins(x=0.05)


def effects_table(effects: Sequence[MetaAnalysis]) -> Printed:
    """Returns fixed and random effects of each coefficient, and the heterogeneity of sites."""
    ratio = effects[0].sites.ratio
    level = effects[0].sites.level
    title = f"Sites' own estimates together{f', {ratio}s' if ratio else ''}"
    headings = [f"fixed effects, {level:g} interval", "p", "random effects, interval", "p"]
    table = new_table(["column"], [*headings, "Q", "p", "I2", "tau2"], title=title, padding=(0, 1))
    for one in effects:
        cells = []
        for estimate, low, high, p in zip(*one.effects.shown, one.effects.p_value, strict=True):
            cells += [f"{estimate:.4g} ({low:.4g} .. {high:.4g})", shown_p(p)]
        scatter = [f"{one.q:.1f}", shown_p(one.p_value), f"{one.i2:.0%}", f"{one.tau2:.3g}"]
        table.add_row(one.name, *cells, *scatter)
    table.caption, table.caption_justify = (
        "Random effects are Hartung and Knapp's, by REML.",
        "left",
    )
    return table
