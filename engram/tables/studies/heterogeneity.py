"""The picture of heterogeneity (Figure 1 of the paper): which task differs in what."""

from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure

from engram.core.arrays import Array
from engram.studies.figures import png
from engram.tables.studies.coefficients import Coefficients

_PALE: Final = 0.2  # of a color map: its palest part would pass for white
_LABELED: Final = 150  # most tasks, or columns, that a plot labels by name


def heterogeneity(found: Coefficients, deviations: Array) -> Array:
    """Returns how far tasks' coefficients are from the shared ones, where they differ (Figure 1).

    These are the differences that the table of tasks has. (J.2 sets distances below
    ``6 sqrt(v_k)`` to 0, by which most of them would be invisible.) Distances are those of the
    tasks' own estimates, or of their coefficients where rows do not determine the former,
    multiplied by ``deviations``, the columns' standard deviations, shape (d,).

    Returns:
        Shape (M, d), in the unit of the linear predictor; 0 where a task does not differ, and NaN
        if that is since its rows do not determine an estimate.
    """
    own = np.where(np.isnan(found.own), found.coef, found.own)[:, :-1]
    gaps = np.abs(own - found.shared[:-1]) * deviations
    unknown = np.isnan(found.own[:, :-1]) & ~found.differs
    return np.where(unknown, np.nan, np.where(found.differs, gaps, 0.0))


def draw_heterogeneity(values: Array, found: Coefficients, unit: str) -> bytes:
    """Plots ``heterogeneity`` as tasks by columns; returns it as PNG."""
    tasks, columns = values.shape
    size = (3.5 + 0.24 * min(columns, _LABELED), 2.5 + 0.19 * min(tasks, _LABELED))
    figure = Figure(figsize=(max(6.5, size[0]), max(4.0, size[1])), layout="constrained")
    axes = figure.subplots()
    some = values[np.isfinite(values) & (values > 0)]
    least, most = (float(some.min()), float(some.max())) if len(some) else (0.1, 1.0)
    shades = mpl.colormaps["magma_r"](np.linspace(_PALE, 1, 256))
    colors = ListedColormap(shades, under="white", bad="lightgray")
    # On a logarithmic scale, and without the palest shades, the least difference is seen as well.
    scale = LogNorm(least * (1 - 1e-9), max(most, 1.01 * least))
    image = axes.imshow(_visible(values, least), cmap=colors, norm=scale, aspect="auto")
    bar = f"|own estimate - shared|,\n{unit} per s.d. of the column"
    legend = figure.colorbar(image)
    legend.set_label(bar, parse_math=False)  # names may have dollar signs
    for kind in ("set_major_formatter", "set_minor_formatter"):
        getattr(legend.ax.yaxis, kind)("{x:g}")
    for axis, names, what in (
        (axes.xaxis, found.columns[:-1], "columns"),
        (axes.yaxis, [str(task) for task in found.tasks], "tasks"),
    ):
        if len(names) <= _LABELED:
            short = [name if len(name) <= 28 else f"{name[:27]}…" for name in names]
            axis.set_ticks(range(len(names)), short, fontsize=8, parse_math=False)
            axis.set_ticks(np.arange(len(names) + 1) - 0.5, minor=True)
        else:
            axis.set_label_text(f"{len(names)} {what}, numbered as in coefficients.csv")
    axes.tick_params(axis="x", rotation=90)
    axes.tick_params(which="minor", length=0)
    axes.grid(which="minor", color="0.9", lw=0.5)
    gray = "; gray: not determined" if np.isnan(values).any() else ""
    axes.set_title(f"white: does not differ{gray}", fontsize=9)
    return png(figure)


def _visible(values: Array, least: float) -> Array:
    """Returns the values with 0 replaced by one below the color scale, which has no 0."""
    return np.where(values == 0, least / 2, values)
