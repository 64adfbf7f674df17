"""MOLAR's coefficients for a table, and where tasks differ."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from rich.table import Table as Printed

from engram.arrays import Array, Bools
from engram.molar.intervals import own_interval
from engram.molar.shrinkage import threshold
from engram.molar.site import SiteEstimate
from simulations.pool import Row
from simulations.studies.figures import new_table, png
from simulations.studies.molar.comparison import Molar

_FEW: Final = 60  # lines that a table of all tasks may have
_UNSURE: Final = """\
?: the interval (App. F) has another threshold, and judges otherwise; the task's
own estimate is in coefficients.csv."""
_NO_INTERVAL: Final = "-: too many tasks differ, or there are too few, for an interval.\n"
_SURE: Final = 6.0  # standard errors, below which Figure 1 shows no difference
_LABELED: Final = 150  # most tasks, or columns, that a plot labels by name


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


def coefficients(model: Molar, level: float) -> Coefficients:
    """Collects the coefficients of a fitted model, with intervals of a level."""
    shared = model.summary(level=level)
    limits = model.confidence_intervals(level)
    known = np.stack([site.determined for site in model.sites_])
    intercepts = [own_interval(site, level=level) for site in model.sites_]
    return Coefficients(
        model.tasks_.tolist(),
        shared.names,
        level,
        shared.coef,
        *shared.limits,
        np.column_stack([model.coef_, model.intercept_]),
        np.column_stack([limits.low, [own.low[-1] for own in intercepts]]),
        np.column_stack([limits.high, [own.high[-1] for own in intercepts]]),
        model.support_,
        np.where(known, [site.coef for site in model.sites_], np.nan),
        np.where(known, [site.standard_error for site in model.sites_], np.nan),
        np.array([_reach(model, site) for site in model.sites_]),
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


def records(found: Coefficients) -> list[Row]:
    """Returns the lines of ``frame`` as rows."""
    rows: list[Row] = frame(found).astype(object).to_dict("records")
    return rows


def shared_rows(found: Coefficients) -> list[Row]:
    """Returns each column's shared coefficient, its interval, and how many tasks differ."""
    counts = [*found.differs.sum(axis=0).tolist(), None]
    lines = pd.DataFrame(
        {
            "column": found.columns,
            "coefficient": found.shared,
            "low": found.shared_low,
            "high": found.shared_high,
            "tasks-that-differ": np.array(counts, dtype=object),
        }
    )
    rows: list[Row] = lines.astype(object).to_dict("records")
    return rows


def shared_table(found: Coefficients) -> Printed:
    """Returns the shared coefficients as a table."""
    title = f"Shared by {len(found.tasks)} tasks"
    printed = new_table([], [], title=title, padding=(0, 1, 0, 0))
    for heading in ("column", "coefficient", f"{found.level:g} interval", "tasks that differ"):
        words = heading == "column"
        printed.add_column(heading, justify="left" if words else "right", no_wrap=not words)
    for row in shared_rows(found):
        count = row["tasks-that-differ"]
        of = "each its own" if count is None else f"{count} of {len(found.tasks)}" if count else ""
        limits = _interval(row["low"], row["high"])
        printed.add_row(row["column"], f"{row['coefficient']:.4g}", limits, of)
    if not np.isfinite(found.shared_low).all():
        printed.caption = _NO_INTERVAL
        printed.caption_justify = "left"
    return printed


def task_table(found: Coefficients, *, everything: bool) -> list[Printed | str]:
    """Returns tasks' coefficients as a table, and remarks on it.

    A long table has only those that differ from the shared ones, unless ``everything`` is shown.
    """
    lines = found.coef.size
    everything = everything or lines <= _FEW
    title = "Tasks" if everything else "Tasks, where they differ"
    printed = new_table([], [], title=title, padding=(0, 1, 0, 0))
    for heading in ("task", "column", "coefficient", f"{found.level:g} interval", "shared", ""):
        words = heading in ("task", "column", "")
        printed.add_column(heading, justify="left" if words else "right", no_wrap=not words)
    marks = np.full(found.coef.shape, "its own", dtype=object)
    marks[:, :-1] = np.where(found.differs, "differs", "")
    marks[unsure(found)] += "?"
    marks[np.isnan(found.own)] = "the others'"
    shown = np.full(marks.shape, True)
    if not everything:
        shown[:, :-1], shown[:, -1] = found.differs, False
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
    parts.append(_threshold(found.reach[np.isfinite(found.reach)]))
    if (unsure(found) & shown).any():
        parts.append(_UNSURE)
    if not everything:
        left = lines - int(shown.sum())
        parts.append(
            f"All {lines} coefficients are in coefficients.csv; {left} that are left out here are\n"
            "shared, or intercepts. --all shows them."
        )
    return parts


def _threshold(reach: Array) -> str:
    if not len(reach):  # by --c inf
        return "By this --c no task differs, however far its own estimate is."
    ends = dict.fromkeys((f"{reach.min():.2g}", f"{reach.max():.2g}"))
    return f"A task differs from {' to '.join(ends)} standard errors on (it scales with --c)."


def unsure(found: Coefficients) -> Bools:
    """Returns which coefficients lie outside their intervals, shape (M, d').

    There the thresholds of shrinkage and of Appendix F disagree on whether the coefficient is
    shared or the task's own.
    """
    outside: Bools = (found.coef < found.low) | (found.coef > found.high)
    outside[:, -1] = False
    return outside


def _interval(low: float, high: float) -> str:
    return f"{low:.4g} .. {high:.4g}" if np.isfinite([low, high]).all() else "-"


def heterogeneity(found: Coefficients, deviations: Array) -> Array:
    """Returns how far tasks' own estimates are from the shared coefficients (Figure 1).

    J.2 sets distances below ``6 sqrt(v_k)`` to 0, for a target whose noise has deviation 1; here
    the bound is 6 standard errors, which is the same in any unit. J.2's shared coefficients are
    the median of the estimates; here they are MOLAR's, their weighted median. Distances are
    multiplied by ``deviations``, the columns' standard deviations, shape (d,).

    Returns:
        Shape (M, d), in the unit of the linear predictor; NaN where a task has no estimate.
    """
    gaps = np.abs(found.own - found.shared)[:, :-1]
    clear = ~(gaps < _SURE * found.error[:, :-1])
    return np.where(clear, gaps * deviations, 0.0)


def draw_heterogeneity(values: Array, found: Coefficients, unit: str) -> bytes:
    """Plots ``heterogeneity`` as tasks by columns; returns it as PNG."""
    tasks, columns = values.shape
    size = (3.5 + 0.24 * min(columns, _LABELED), 2.5 + 0.19 * min(tasks, _LABELED))
    figure = Figure(figsize=(max(6.5, size[0]), max(4.0, size[1])), layout="constrained")
    axes = figure.subplots()
    most = float(np.nanmax(values, initial=0.0)) or 1.0
    colors = mpl.colormaps["magma_r"].with_extremes(under="white", bad="lightgray")
    image = axes.imshow(values, cmap=colors, vmin=1e-9 * most, vmax=most, aspect="auto")
    bar = f"|own estimate - shared|,\n{unit} per s.d. of the column"
    figure.colorbar(image).set_label(bar, parse_math=False)  # names may have dollar signs
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
    axes.set_title(f"white: below {_SURE:g} standard errors{gray}", fontsize=9)
    return png(figure)
