"""Intervals by the penalized profile likelihood, for few events and for classes told apart.

With few events the likelihood of a coefficient is skewed, or has no maximum. With Firth's penalty
(Firth 1993; Heinze and Schemper 2001, 2002) it has one, and a limit is where twice its fall, all
other coefficients at their best, is the quantile of chi-squared.
"""

from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

import numpy as np
from scipy.optimize import brentq, minimize
from scipy.special import expit, ndtri

from engram.core.arrays import Array, Bools, Ints
from engram.core.checks import require
from engram.tables.intervals import Intervals
from engram.tables.site import Rows
from engram.tables.survival.newton import SumsAt, independent_columns
from engram.tables.survival.partial import Sums, penalize

_WIDER: Final = 1.5  # by which a bracket of a limit grows
_STILL: Final = 1e-6  # of the gradient, in standard errors
_NEVER: Final = 1e6  # loss of coefficients at which the likelihood cannot be computed
_CLOSE: Final = 1e-5  # of a limit, in standard errors


class OwnEstimate(NamedTuple):
    """A site's own estimate."""

    coef: Array  # shape (d,); NaN where the rows do not determine them
    standard_error: Array  # shape (d,); infinite there
    limits: Intervals  # infinite there


def firth_logistic_intervals(rows: Rows, *, level: float = 0.95) -> OwnEstimate:
    """Computes Firth's logistic regression of a task, and its profile intervals, in (0, 1).

    They are those of R's ``logistf``; see ``engram.tables.effects.firth``.
    """
    x, y, counts = rows.counted()

    def penalized(columns: Ints) -> SumsAt:
        some = x[:, columns]

        def sums_at(coef: Array) -> Sums:
            eta = some @ coef
            p = expit(eta)
            loglik, curvature = counts @ (y * eta - np.logaddexp(0, eta)), counts * p * (1 - p)
            score, information = some.T @ (counts * (y - p)), (some.T * curvature) @ some
            third = np.einsum("i,ij,ik,il->jkl", curvature * (1 - 2 * p), some, some, some)
            return penalize(Sums(float(loglik), score, information, float(counts @ y), third))

        return sums_at

    return profile_intervals(penalized, x.shape[1], level)


def profile_intervals(
    penalized: Callable[[Ints], SumsAt], dim: int, level: float = 0.95
) -> OwnEstimate:
    """Maximizes a penalized likelihood, and computes its profile intervals of a level.

    Args:
        penalized: Returns the penalized log-likelihood of some of the d columns.
        dim: d.
        level: In (0, 1).
    """
    require(0 < level < 1, "level", level, "in (0, 1)")
    none, wide = np.full(dim, np.nan), np.full(dim, np.inf)
    found = OwnEstimate(none, wide, Intervals(-wide, wide.copy()))
    kept, determined = independent_columns(penalized(np.arange(dim))(np.zeros(dim)).information)
    if not len(kept):
        return found
    sums_at, begin = penalized(kept), np.zeros(len(kept))
    every = np.ones(len(kept), dtype=bool)
    best, sums = _maximize(sums_at, begin, every, sums_at(begin).information)
    error, z = np.sqrt(np.diag(np.linalg.inv(sums.information))), float(ndtri((1 + level) / 2))
    for i, k in enumerate(kept):
        if determined[k]:
            found.coef[k], found.standard_error[k] = best[i], error[i]
            for side, ends in zip((-1, 1), found.limits, strict=True):
                ends[k] = _profile_limit(sums_at, best, sums, i, side * error[i], z)
    return found


def _profile_limit(sums_at: SumsAt, best: Array, top: Sums, k: int, unit: float, z: float) -> float:
    """Returns where twice the penalized log-likelihood's fall from its maximum is ``z^2``."""
    inside, rest = best.copy(), np.arange(len(best)) != k

    @cache
    def short(distance: float) -> float:
        at = inside.copy()  # beyond the limit the information may vanish
        at[k] = best[k] + distance * unit
        at, sums = _maximize(sums_at, at, rest, top.information)
        root = float(np.sqrt(max(2 * (top.loglik - sums.loglik), 0.0)))
        if root < z:
            inside[:] = at
        return root - z

    near, far = 0.0, z
    while short(far) < 0:
        near, far = far, far * _WIDER
    return float(best[k] + unit * brentq(short, near, far, xtol=_CLOSE))


def _maximize(sums_at: SumsAt, begin: Array, free: Bools, information: Array) -> tuple[Array, Sums]:
    """Maximizes over the coefficients ``free``; the others stay.

    The information lacks the penalty's curvature, which matters as much where there are no more
    events than columns, so that it is only what the quasi-Newton method begins with.
    """
    full = begin.copy()
    if not free.any():
        return full, sums_at(full)
    # In these units the information is the identity.
    unit = np.linalg.inv(np.linalg.cholesky(information[np.ix_(free, free)])).T

    def loss(part: Array) -> tuple[float, Array]:
        full[free] = begin[free] + unit @ part
        sums = sums_at(full)
        if not np.isfinite(sums.loglik):
            return _NEVER, np.zeros_like(part)
        return -sums.loglik, -unit.T @ sums.score[free]

    nil, options = np.zeros(len(unit)), {"gtol": _STILL}
    part = minimize(loss, nil, jac=True, method="BFGS", options=options).x
    full[free] = begin[free] + unit @ part
    return full, sums_at(full)
