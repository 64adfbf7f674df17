"""MOLAR's coefficients for a table, and where tasks differ."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap, LogNorm
from rich.table import Table as Printed

from engram.cli.console import new_table
from engram.compare.figures import image_of, panels
from engram.core.arrays import Array, Bools
from engram.simulations.job_pool import Row
from engram.tables.adaptive_models import Adaptive
from engram.tables.intervals import own_interval
from engram.tables.shrinkage import threshold
from engram.tables.site import SiteEstimate
from engram.tables.studies.contenders import Molar

_PALE: Final = 0.2  # of a color map: its palest part would pass for white
_LABELED: Final = 150  # most tasks, or columns, that a plot labels by name
_FEW: Final = 60  # lines that a table of all tasks may have
_UNSURE: Final = """\
?: outside its interval, which judges by another threshold; the task's own estimate is in
coefficients.csv."""
_NO_INTERVAL: Final = """\
-: too many tasks differ, there are too few for a median's interval (six of equal weight
at level 0.95; adaptive MOLAR takes two), or the rows of all tasks do not determine it.
"""
_SCATTER: Final = """\
scatter: standard deviation of coefficients
that do not differ; 0: all alike; p: of the
test (Cochran's Q) that they are alike.
"""
KINDS: Final = {
    "honest": """\
Intervals (honest) hold at their level however far a coefficient is from the others'. They are
at most 13 % shorter than a task's own, and at most some 20 % longer.""",
    "shared": """\
Intervals (shared, App. F) hold where a coefficient is shared or differs by ten standard errors
or more, and are much shorter than a task's own. Of coefficients that differ by about three
standard errors they cover few: 0.31 at level 0.95. --intervals honest covers all alike.""",
}
"""Notes on the intervals, beside the table that has them."""


class Coefficients(NamedTuple):
    """Fitted coefficients of M tasks and d columns; d' columns with the intercept, the last one."""

    tasks: list[Any]  # labels, in order
    columns: Sequence[str]  # names
    level: float  # confidence level of the intervals
    shared: Array  # the shared coefficients, shape (d',)
    # Lower limits of their intervals, shape (d',); infinite if there is no interval.
    shared_low: Array
    shared_high: Array  # upper limits
    coef: Array  # each task's, shape (M, d')
    low: Array  # lower limits of their intervals, shape (M, d')
    high: Array  # upper limits
    # Where a task's coefficient is not the shared one, shape (M, d); intercepts are never shared.
    differs: Bools
    own: Array  # each task's estimate from its own rows, shape (M, d'); NaN if these determine none
    error: Array  # the standard errors of these estimates
    # Standard errors from the shared coefficient within which a task's own estimate is replaced by
    # it, shape (M,); infinite for tasks without an estimate of their noise.
    reach: Array
    kind: str  # of ``KINDS``: of tasks' intervals
    # Of adaptive MOLAR: standard deviation of the tasks' coefficients that are not apart, shape
    # (d,), and the p-value of the test that there is none.
    spread: Array | None = None
    p_value: Array | None = None


def coefficients(model: Molar | Adaptive, level: float, kind: str = "honest") -> Coefficients:
    """Collects the coefficients of a fitted model, with intervals of a level and a kind."""
    full = np.column_stack([model.coef_, model.intercept_])
    more: tuple[Array, Array] | tuple[()] = ()
    shared = model.summary(level=level)
    if isinstance(model, Adaptive):
        limits = model.confidence_intervals(level)
        reach, more = np.full(len(full), model.c), (model.spread_, model.p_value_)
    else:
        limits = model.confidence_intervals(level, "honest" if kind == "honest" else "practical")
        reach = np.array([_reach(model, site) for site in model.sites_])
    known = np.stack([site.determined for site in model.sites_])
    intercepts = [own_interval(site, level=level) for site in model.sites_]
    return Coefficients(
        model.tasks_.tolist(),
        model.column_names,
        level,
        shared.coef,
        *shared.limits,
        full,
        np.column_stack([limits.low, [own.low[-1] for own in intercepts]]),
        np.column_stack([limits.high, [own.high[-1] for own in intercepts]]),
        model.support_,
        np.where(known, [site.coef for site in model.sites_], np.nan),
        np.where(known, [site.standard_error for site in model.sites_], np.nan),
        reach,
        kind,
        *more,
    )


def _reach(model: Molar, site: SiteEstimate) -> float:
    unit = site._replace(sigma=1.0)  # gamma_m is in the unit of the noise
    total = model.shared_.size
    known = np.isfinite(site.sigma)
    return threshold(unit, total, option=model.option, c=model.c) if known else np.inf


def frame(found: Coefficients) -> pd.DataFrame:
    """Returns a line for each task and column; unknown values are empty.

    ``differs`` is empty for intercepts, since every task has its own.
    """
    shape = found.coef.shape
    differs = np.full(shape, None, dtype=object)
    differs[:, :-1] = found.differs
    finite = np.isfinite(found.low)
    return pd.DataFrame(
        {
            "task": np.repeat(np.array(found.tasks, dtype=object), shape[1]),
            "column": np.tile(np.array(found.columns, dtype=object), shape[0]),
            "coefficient": found.coef.ravel(),
            "low": np.where(finite, found.low, np.nan).ravel(),
            "high": np.where(finite, found.high, np.nan).ravel(),
            "differs": differs.ravel(),
            "own": found.own.ravel(),
            "own-error": found.error.ravel(),
        }
    )


def shared_rows(found: Coefficients) -> list[Row]:
    """Returns each column's shared coefficient, its interval, and the number of tasks apart."""
    lines: dict[str, Sequence[Any]] = {
        "column": found.columns,
        "coefficient": found.shared.tolist(),
        "low": found.shared_low.tolist(),
        "high": found.shared_high.tolist(),
        "tasks-that-differ": [*found.differs.sum(axis=0).tolist(), None],
    }
    if found.spread is not None and found.p_value is not None:
        lines["spread"] = [*found.spread.tolist(), np.nan]
        lines["p-value"] = [*found.p_value.tolist(), np.nan]
    return [dict(zip(lines, row, strict=True)) for row in zip(*lines.values(), strict=True)]


def shared_table(found: Coefficients) -> Printed:
    """Returns the shared coefficients as a table."""
    more = [] if found.spread is None else ["scatter", "p"]
    headings = ["coefficient", f"{found.level:g} interval", *more, "tasks that differ"]
    printed = _table(f"Shared by {len(found.tasks)} tasks", ["column"], headings)
    for row in shared_rows(found):
        count = row["tasks-that-differ"]
        of = "each its own" if count is None else f"{count} of {len(found.tasks)}" if count else ""
        scatter = [row[key] for key in ("spread", "p-value") if key in row]
        numbers = [f"{value:.2g}" if np.isfinite(value) else "" for value in scatter]
        limits = _interval(row["low"], row["high"])
        printed.add_row(row["column"], f"{row['coefficient']:.4g}", limits, *numbers, of)
    if not np.isfinite(found.shared_low).all():
        printed.caption = _NO_INTERVAL
    elif more:
        printed.caption = _SCATTER
    printed.caption_justify = "left"
    return printed


def _table(title: str, left: Sequence[str], right: Sequence[str]) -> Printed:
    printed = new_table([], [], title=title, padding=(0, 1, 0, 0))
    for heading in left:
        printed.add_column(heading)
    for heading in right:
        printed.add_column(heading, justify="right", no_wrap=True)
    return printed


def task_table(found: Coefficients) -> list[Printed | str]:
    """Returns tasks' coefficients as a table, and remarks on it.

    A long table has only those that differ from the shared ones.
    """
    lines, whole = found.coef.size, found.coef.size <= _FEW
    right = ["coefficient", f"{found.level:g} interval", "shared"]
    title = "Tasks" if whole else "Tasks, where they differ"
    printed = _table(title, ["task", "column"], right)
    printed.add_column("")
    marks = np.full(found.coef.shape, "its own", dtype=object)
    marks[:, :-1] = np.where(found.differs, "differs", "")
    marks[unsure(found)] += "?"
    marks[np.isnan(found.own)] = "the others'"
    shown = np.full(marks.shape, whole)
    shown[:, :-1] |= found.differs
    for m, task in enumerate(found.tasks):
        for n, k in enumerate(np.flatnonzero(shown[m])):
            printed.add_row(
                "" if n else str(task),
                found.columns[int(k)],
                f"{found.coef[m, k]:.4g}",
                _interval(found.low[m, k], found.high[m, k]),
                f"{found.shared[k]:.4g}",
                marks[m, k],
            )
    parts: list[Printed | str] = [printed if shown.any() else "No task differs.\n"]
    parts += [_threshold(found), KINDS[found.kind]]
    if (unsure(found) & shown).any():
        parts.append(_UNSURE)
    if (~np.isfinite(found.low) & shown).any():
        parts.append("-: no interval, since the task's own rows do not determine the coefficient.")
    if not whole:
        left = lines - int(shown.sum())
        parts.append(
            f"All {lines} coefficients are in coefficients.csv; {left} that are left out here do\n"
            "not differ, or are intercepts."
        )
    return parts


def _threshold(found: Coefficients) -> str:
    reach = found.reach[np.isfinite(found.reach)]
    if not len(reach):  # by --c inf
        return "By this --c no task differs, however far its own estimate is."
    ends = " to ".join(dict.fromkeys((f"{reach.min():.2g}", f"{reach.max():.2g}")))
    of = "standard errors" if found.spread is None else "standard deviations (with the scatter)"
    return f"A task differs from {ends} {of} on (it scales with --c)."


def unsure(found: Coefficients) -> Bools:
    """Mask of the coefficients outside their intervals, shape (M, d').

    There the thresholds of shrinkage and of Appendix F disagree on whether the coefficient is
    shared or the task's own.
    """
    outside: Bools = (found.coef < found.low) | (found.coef > found.high)
    outside[:, -1] = False
    return outside


def _interval(low: float, high: float) -> str:
    return f"{low:.4g} .. {high:.4g}" if np.isfinite([low, high]).all() else "-"


def heterogeneity(found: Coefficients, deviations: Array) -> Array:
    """Computes distances of differing coefficients from the shared ones (Figure 1).

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
    figure, (axes,) = panels(1, size=(max(6.5, size[0]), max(4.0, size[1])), grid="")
    some = values[np.isfinite(values) & (values > 0)]
    least, most = (float(some.min()), float(some.max())) if len(some) else (0.1, 1.0)
    shades = mpl.colormaps["magma_r"](np.linspace(_PALE, 1, 256))
    colors = ListedColormap(shades, under="white", bad="lightgray")
    # On a logarithmic scale, and without the palest shades, the least difference is seen as well.
    scale = LogNorm(least * (1 - 1e-9), max(most, 1.01 * least))
    shown = np.where(values == 0, least / 2, values)
    image = axes.imshow(shown, cmap=colors, norm=scale, aspect="auto")
    bar = f"|own estimate - shared|,\n{unit} per s.d. of the column"
    legend = figure.colorbar(image)
    legend.set_label(bar, parse_math=False)  # names may have dollar signs
    legend.ax.yaxis.set_major_formatter("{x:g}")
    legend.ax.yaxis.set_minor_formatter("{x:g}")
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
    return image_of(figure)
