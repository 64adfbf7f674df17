"""Shared parts of all plots: panels, bands, axes, and their files."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from engram.core.arrays import Array
from engram.settings.files import replace_file

COLORS: Final = list(mpl.color_sequences["tab10"])


class Shown(Figure):
    """A figure that notebooks show by themselves, without ``%matplotlib inline``."""

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.savefig(data, format="png")
        return data.getvalue()


def panels(
    wide: int,
    high: int = 1,
    *,
    size: tuple[float, float],
    grid: Literal["both", "x", "y", ""] = "both",
    **shared: Any,
) -> tuple[Figure, list[Axes]]:
    """Returns a figure of ``size`` inches, and its panels, row by row, with lines of a ``grid``."""
    figure = Shown(figsize=size, layout="constrained")
    found = list(figure.subplots(high, wide, squeeze=False, **shared).ravel())
    for axes in found if grid else ():
        axes.grid(axis=grid, alpha=0.3)
    return figure, found


def draw_band(axes: Axes, line: Line2D, low: Array | None, high: Array | None) -> None:
    """Draws a band around a curve if there are limits."""
    if low is not None and high is not None:
        x, color = line.get_xdata(), line.get_color()
        axes.fill_between(x, low, high, color=color, alpha=0.15, lw=0)


def log_ticks(axes: Axes, multiples: Sequence[float]) -> None:
    """Makes the y axis logarithmic, with plain labels at multiples of powers of 10."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=multiples))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def finish(figure: Figure, legend: Axes) -> bytes:
    """Puts one panel's legend beside all of them; returns the figure as PNG."""
    figure.legend(*legend.get_legend_handles_labels(), loc="outside right upper")
    return image_of(figure)


def image_of(figure: Figure, file_format: str = "png") -> bytes:
    """Renders a figure to a file without a date, the same every time."""
    data = io.BytesIO()
    date = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(file_format)
    figure.savefig(data, format=file_format, dpi=150, metadata=date)
    return data.getvalue()


def save(figure: Figure, path: Path) -> None:
    """Writes a figure, replacing a file or a link but not its target."""
    replace_file(path, image_of(figure, path.suffix.removeprefix(".")))
