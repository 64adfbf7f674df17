"""MOLAR's coefficients for a table, and where tasks differ."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from rich.table import Table as Printed

from engram.core.arrays import Array, Bools
from engram.simulations.job_pool import Row
from engram.studies.figures import new_table
from engram.tables.adaptive_models import Adaptive
from engram.tables.intervals import Intervals, own_interval, quantile
from engram.tables.shrinkage import threshold
from engram.tables.site import SiteEstimate
from engram.tables.studies.contenders import Molar

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
    if isinstance(model, Adaptive):
        center = np.append(model.shared_coef_, model.shared_intercept_)
        half = quantile((1 + level) / 2, model.shared_freedom_) * model.shared_error_
        around = Intervals(center - half, center + half)
        limits = model.confidence_intervals(level)
        reach, more = np.full(len(full), model.c), (model.spread_, model.p_value_)
    else:
        shared = model.summary(level=level)
        center, around = shared.coef, shared.limits
        limits = model.confidence_intervals(level, "honest" if kind == "honest" else "practical")
        reach = np.array([_reach(model, site) for site in model.sites_])
    known = np.stack([site.determined for site in model.sites_])
    intercepts = [own_interval(site, level=level) for site in model.sites_]
    return Coefficients(
        model.tasks_.tolist(),
        model.column_names,
        level,
        center,
        *around,
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
    if found.spread is not None and found.p_value is not None:
        lines["spread"] = np.append(found.spread, np.nan)
        lines["p-value"] = np.append(found.p_value, np.nan)
    rows: list[Row] = lines.astype(object).to_dict("records")
    return rows


def shared_table(found: Coefficients) -> Printed:
    """Returns the shared coefficients as a table."""
    title = f"Shared by {len(found.tasks)} tasks"
    printed = new_table([], [], title=title, padding=(0, 1, 0, 0))
    more = [] if found.spread is None else ["scatter", "p"]
    interval = f"{found.level:g} interval"
    for heading in ("column", "coefficient", interval, *more, "tasks that differ"):
        words = heading == "column"
        printed.add_column(heading, justify="left" if words else "right", no_wrap=not words)
    for row in shared_rows(found):
        count = row["tasks-that-differ"]
        of = "each its own" if count is None else f"{count} of {len(found.tasks)}" if count else ""
        limits = _interval(row["low"], row["high"])
        scatter = [_number(row[key], 2) for key in ("spread", "p-value") if key in row]
        printed.add_row(row["column"], f"{row['coefficient']:.4g}", limits, *scatter, of)
    if not np.isfinite(found.shared_low).all():
        printed.caption = _NO_INTERVAL
    elif more:
        printed.caption = _SCATTER
    printed.caption_justify = "left"
    return printed


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}g}" if np.isfinite(value) else ""


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
    parts.append(_threshold(found))
    parts.append(KINDS[found.kind])
    if (unsure(found) & shown).any():
        parts.append(_UNSURE)
    if (~np.isfinite(found.low) & shown).any():
        parts.append("-: no interval, since the task's own rows do not determine the coefficient.")
    if not everything:
        left = lines - int(shown.sum())
        parts.append(
            f"All {lines} coefficients are in coefficients.csv; {left} that are left out here do\n"
            "not differ, or are intercepts. --all shows them."
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
    """Returns which coefficients lie outside their intervals, shape (M, d').

    There the thresholds of shrinkage and of Appendix F disagree on whether the coefficient is
    shared or the task's own.
    """
    outside: Bools = (found.coef < found.low) | (found.coef > found.high)
    outside[:, -1] = False
    return outside


def _interval(low: float, high: float) -> str:
    return f"{low:.4g} .. {high:.4g}" if np.isfinite([low, high]).all() else "-"
