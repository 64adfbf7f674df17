"""Shared parts of the studies' tables and plots."""

import io
from collections.abc import Sequence
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from rich import box
from rich.table import Table

from engram.core.arrays import Array

COLORS: Final = list(mpl.color_sequences["tab10"])


def new_table(left: Sequence[str], right: Sequence[str], **looks: Any) -> Table:
    """Returns an empty table with left-aligned and then right-aligned columns."""
    usual: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 0, 0, 1)}
    found = Table(title_justify="left", **usual | looks)
    for heading in left:
        found.add_column(heading, no_wrap=True)
    for heading in right:
        found.add_column(heading, justify="right", no_wrap=True)
    return found


def plus_minus(value: float | None, error: float | None, digits: int = 2) -> str:
    """Formats a number with its error, if it has one; returns ``-`` for None."""
    if value is None:
        return "-"
    return f"{value:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")


class Shown(Figure):
    """A figure that notebooks show by themselves, without ``%matplotlib inline``."""

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.savefig(data, format="png")
        return data.getvalue()


def panels(
    wide: int, high: int = 1, *, size: tuple[float, float], **shared: Any
) -> tuple[Figure, list[Axes]]:
    """Returns a figure of ``size`` inches, and its panels, row by row, each with grid lines."""
    figure = Shown(figsize=size, layout="constrained")
    found = list(figure.subplots(high, wide, squeeze=False, **shared).ravel())
    for axes in found:
        axes.grid(alpha=0.3)
    return figure, found


def draw_band(
    axes: Axes, x: Any, curve: Array, low: Array | None, high: Array | None, **line: Any
) -> None:
    """Draws a curve, and a band around it if there are limits."""
    (drawn,) = axes.plot(x, curve, **line)
    if low is not None and high is not None:
        axes.fill_between(x, low, high, color=drawn.get_color(), alpha=0.15, lw=0)


def log_ticks(axes: Axes, multiples: Sequence[float]) -> None:
    """Makes the y axis logarithmic, with plain labels at multiples of powers of 10."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=multiples))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def finish(figure: Figure, legend: Axes) -> bytes:
    """Puts one panel's legend beside all of them; returns the figure as PNG."""
    figure.legend(*legend.get_legend_handles_labels(), loc="outside right upper")
    return png(figure)


def png(figure: Figure) -> bytes:
    """Returns a figure as PNG."""
    file = io.BytesIO()
    figure.savefig(file, dpi=150, format="png")
    return file.getvalue()
