"""Figures 2, 3, 8 and 9 of the MOLAR paper, of what was measured, and their points in tables."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from rich import box
from rich.table import Table

from simulations.reproduce.molar_methods import METHODS
from simulations.reproduce.report import COLORS, Row, png

__all__ = ["CAPTION", "draw_figures", "summary", "tables"]

CAPTION: Final = """\
Mean l1 error of the tasks' coefficients, of OLS; and that of the other methods
(in Figure 3 MOLAR's) as a ratio to it"""


def summary(done: Sequence[Row]) -> list[Row]:
    """Returns a row for each point and method, over its trials.

    It has the point's fields and ``figure``; ``method``, ``trials``, ``error``, ``standard-error``
    (None for one trial), and ``of-ols``, the error as a ratio to that of OLS.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in done:
        point = {key: row[key] for key in row if key not in ("trial", "errors")}
        groups.setdefault(tuple(point.items()), []).append(row["errors"])
    rows: list[Row] = []
    for key, trials in groups.items():
        baseline = np.mean([errors["ols"] for errors in trials])
        for method in trials[0]:
            found = np.array([errors[method] for errors in trials])
            spread = found.std(ddof=1) / len(found) ** 0.5 if len(found) > 1 else None
            rows.append(
                {
                    **dict(key),
                    "method": method,
                    "trials": len(found),
                    "error": float(found.mean()),
                    "standard-error": None if spread is None else float(spread),
                    "of-ols": float(found.mean() / baseline),
                }
            )
    return rows


class _Curve(NamedTuple):
    """A curve of a figure: a method's, or MOLAR's in a series of points."""

    label: str
    method: str
    series: str
    color: Any

    def of(self, rows: Sequence[Row]) -> list[Row]:
        """Returns its rows."""
        own = (self.method, self.series)
        return [row for row in rows if (row["method"], row["series"]) == own]


def _curves(rows: Sequence[Row]) -> list[_Curve]:
    series = list(dict.fromkeys(row["series"] for row in rows))
    if series != [""]:
        return [_Curve(name, "molar", name, COLORS[i]) for i, name in enumerate(series)]
    named = {row["method"] for row in rows}
    methods = enumerate(METHODS.items())
    return [_Curve(m.title, name, "", COLORS[i]) for i, (name, m) in methods if name in named]


def _figures(rows: Sequence[Row]) -> Iterator[tuple[int, list[Row]]]:
    for number in dict.fromkeys(row["figure"] for row in rows):
        yield number, [row for row in rows if row["figure"] == number]


def _panels(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    for panel in dict.fromkeys(row["panel"] for row in rows):
        yield panel, [row for row in rows if row["panel"] == panel]


# --- Tables --------------------------------------------------------------------------------


def tables(rows: Sequence[Row]) -> list[Table]:
    """Returns a table for each figure; ``CAPTION`` says what is in them."""
    return [_table(number, own) for number, own in _figures(rows)]


def _table(number: int, rows: Sequence[Row]) -> Table:
    curves = [curve for curve in _curves(rows) if curve.method != "ols"]
    found = Table(
        title=f"Figure {number}", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1)
    )
    for heading in ("panel", "", "OLS", *(curve.label for curve in curves)):
        found.add_column(heading, justify="right", no_wrap=True)
    for panel, some in _panels(rows):
        found.add_section()
        for x in dict.fromkeys(row["x"] for row in some):
            here = [row for row in some if row["x"] == x]
            ols = np.mean([row["error"] for row in here if row["method"] == "ols"])
            ratios = [f"{curve.of(here)[0]['of-ols']:.3f}" for curve in curves]
            found.add_row(panel, str(x), f"{ols:.4f}", *ratios)
    return found


# --- Figures -------------------------------------------------------------------------------


def draw_figures(rows: Sequence[Row]) -> dict[str, bytes]:
    """Draws errors, with bars of a standard error; returns PNGs by the names of their files."""
    return {f"figure-{number}.png": _draw(own) for number, own in _figures(rows)}


def _draw(rows: Sequence[Row]) -> bytes:
    panels = dict(_panels(rows))
    figure = Figure(figsize=(1.5 + 4 * len(panels), 4), layout="constrained")
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (panel, some) in zip(all_axes, panels.items(), strict=True):
        for curve in _curves(rows):
            _draw_curve(axes, curve, curve.of(some))
        axes.grid(alpha=0.3)
        if some[0]["series"]:
            axes.set(title=panel, xlabel="d", xlim=(0, None), ylim=(0, None))
        else:
            axes.set(title=_fixed(some[0]), xlabel=panel, yscale="log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
    all_axes[0].set_ylabel(f"l1 error: mean of {rows[0]['trials']} trials, standard error")
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside right upper")
    return png(figure)


def _draw_curve(axes: Axes, curve: _Curve, rows: Sequence[Row]) -> None:
    axes.errorbar(
        [row["x"] for row in rows],
        [row["error"] for row in rows],
        yerr=[row["standard-error"] or 0.0 for row in rows],
        fmt="o--" if curve.method == "lasso" else "o-",  # it lies on OLS, which is to be seen
        ms=3,
        lw=1.2,
        capsize=2,
        color=curve.color,
        label=curve.label,
    )


def _fixed(row: Mapping[str, Any]) -> str:
    """Says what does not vary in a row's panel."""
    values = {"n": row["size"], "M": row["tasks"], "s": row["differing"]}
    return ", ".join(
        f"{name} = {value:,}" for name, value in values.items() if name != row["panel"]
    )
