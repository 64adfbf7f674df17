"""Confidence intervals that borrow from the other tasks, and hold at every distance from them.

The intervals of Appendix F miss coefficients that differ from the shared one by about three
standard errors. Here coverage is that of a task's own interval wherever its true coefficient lies:
the other tasks only decide on which side of it the error of level alpha is spent (Pratt 1961; Puza
and O'Neill 2006; Yu and Hoff 2018).

Let y be a task's own estimate, theta the true value, and m(y) a density of y that the *other*
tasks suggest: a share of them agrees with a center, the rest lies anywhere within some standard
errors. A value theta is accepted if y lies in ``[theta - a, theta + b]``, with probability
``alpha (1 - w)`` below and ``alpha w`` above. For every share w(theta) in (0, 1) that does not
depend on y this has probability 1 - alpha, exactly if y is normal, or Student's t with its own
estimate of sigma; and w is the one with equal likelihood ratios ``phi(y - theta) / m(y)`` at both
ends, which makes the expected length under m least (Neyman and Pearson's lemma). The interval is
the hull of all accepted values.

Where theta is the center, intervals are up to 13 % shorter than a task's own (with one that holds
everywhere, no more than 15 % can be saved: Pratt's bound); four to six standard errors away they
are up to some 20 % longer, and far away they are the same.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from scipy.special import ndtri

from engram.core.arrays import Array
from engram.core.checks import require
from engram.scoring.intervals import quantile
from engram.tables.heterogeneity import estimate_heterogeneity
from engram.tables.intervals import Intervals, own_interval
from engram.tables.site import SiteEstimate

_REACH: Final = 4.0  # standard deviations beyond which another task does not agree
_WIDE: Final = 5.0  # standard errors: the quartile of those that do not agree
_MOST: Final = 0.5  # of a share that agrees: with more, intervals some errors away are much longer
_GRID: Final = np.linspace(-16.0, 16.0, 321)  # theta - center, in standard errors
_HALVINGS: Final = 20
_LEAST: Final = 1e-6  # of alpha on either side


class Suggestion(NamedTuple):
    """Prior of one task's coefficients from all other tasks, each of shape (d,)."""

    center: Array
    share: Array  # of the tasks that agree with the center, in (0, 1); 0: nothing is suggested
    scatter: Array  # standard deviation of their true values and of the center's error
    sigma: float  # median of the tasks' noise: a task's own must not decide on shares


def honest_intervals(
    sites: Sequence[SiteEstimate], *, level: float = 0.95, intercept: bool = False
) -> Intervals:
    """Returns an interval for each task's coefficients, each limit of shape (M, d).

    Args:
        sites: All tasks' own estimates, of at least two tasks. Where a task's rows do not determine
            a coefficient, its interval is infinite.
        level: Level of each interval, 1 - alpha in (0, 1).
        intercept: Whether the last coefficient is an intercept, for which nothing is borrowed.
    """
    require(len(sites) > 1, "number of tasks", len(sites), "at least 2")
    each = []
    for m, site in enumerate(sites):
        others = [other for i, other in enumerate(sites) if i != m]
        each.append(honest_interval(site, suggest(others), level=level, intercept=intercept))
    return Intervals(np.stack([i.low for i in each]), np.stack([i.high for i in each]))


def suggest(others: Sequence[SiteEstimate]) -> Suggestion:
    """Prior from the other tasks; none for columns that fewer than two determine."""
    own = np.stack([site.coef for site in others])
    error = np.stack([site.standard_error for site in others])
    known = np.isfinite(error) & (error > 0)
    some = known.sum(axis=0) > 1
    center, share, scatter = np.zeros((3, own.shape[1]))
    if some.any():
        known = known[:, some]
        variances = np.where(known, error[:, some] ** 2, np.inf)
        found = estimate_heterogeneity(own[:, some], variances, reach=_REACH)
        agree = known & ~found.apart
        precision = (agree / (variances + found.variance)).sum(axis=0)
        center[some] = found.center
        share[some] = np.minimum(agree.sum(axis=0) / (known.sum(axis=0) + 1), _MOST)
        scatter[some] = np.sqrt(found.variance + 1 / precision)
    sigmas = [site.sigma for site in others if site.sigma < np.inf]
    return Suggestion(center, share, scatter, float(np.median(sigmas)) if sigmas else 1.0)


def honest_interval(
    site: SiteEstimate, suggested: Suggestion, *, level: float = 0.95, intercept: bool = False
) -> Intervals:
    """Interval for each coefficient of a task, given the others' prior."""
    low, high = own_interval(site, level=level)
    some = (suggested.share > 0) & site.determined & (site.standard_error > 0)
    some[len(some) - intercept :] = False
    if some.any() and suggested.sigma > 0:
        center, share, scatter = (each[some] for each in suggested[:3])
        usual = suggested.sigma * site.scale[some]
        shares = tail_shares(share, scatter / usual, level=level)
        y, unit = (site.coef[some] - center) / usual, site.standard_error[some] / usual
        ends = _accepted(y, unit, shares, 1 - level, site.freedom)
        low[some], high[some] = (center + end * usual for end in ends)
    return Intervals(low, high)


def tail_shares(share: Array, scatter: Array, *, level: float = 0.95) -> Array:
    """Returns the shares w of alpha that lie above theta, on a grid of theta, shape (k, 321).

    Args:
        share: Probability that a task agrees with the center, in (0, 1), shape (k,).
        scatter: Standard deviation of the agreeing tasks' true values, and of the error of the
            center, in the task's standard errors, at least 0, shape (k,).
        level: 1 - alpha.
    """
    require(0 < level < 1, "level", level, "in (0, 1)")
    alpha = 1 - level
    low = np.full((len(share), len(_GRID)), _LEAST)
    high = 1 - low
    for _ in range(_HALVINGS):
        w = (low + high) / 2
        above, below = ndtri(1 - alpha * w), ndtri(1 - alpha * (1 - w))
        upper = -(above**2) / 2 - _log_density(_GRID + above, share, scatter)
        lower = -(below**2) / 2 - _log_density(_GRID - below, share, scatter)
        # With more of alpha above, the upper end is nearer, and its ratio is larger.
        low, high = np.where(upper < lower, w, low), np.where(upper < lower, high, w)
    return np.asarray((low + high) / 2)


def _log_density(y: Array, share: Array, scatter: Array) -> Array:
    """Returns log m(y), up to a constant, for y in standard errors from the center.

    It mixes the normal density of those that agree with a Cauchy density of those that do not,
    which is so flat far away that shares are one half there.
    """
    near = np.hypot(1.0, scatter)[:, None]
    far = _WIDE * np.sqrt(np.pi / 2) * (1 + (y / _WIDE) ** 2)
    agrees = np.log(share)[:, None] - np.log(near) - (y / near) ** 2 / 2
    return np.asarray(np.logaddexp(agrees, np.log1p(-share)[:, None] - np.log(far)))


def _accepted(
    y: Array, unit: Array, shares: Array, alpha: float, freedom: float
) -> tuple[Array, Array]:
    """Returns the least and the largest accepted theta of each column, on the grid's scale."""
    above = _GRID + quantile(1 - alpha * shares, freedom) * unit[:, None]
    below = _GRID - quantile(1 - alpha * (1 - shares), freedom) * unit[:, None]
    usual = quantile(1 - alpha / 2, freedom) * unit
    low, high = y - usual, y + usual  # as it is far from the center, where the grid ends
    for k, value in enumerate(y):
        over, under = np.flatnonzero(above[k] >= value), np.flatnonzero(below[k] <= value)
        if len(over):
            i = int(over[0])
            low[k] = _crossing(above[k], i - 1, value) if i else min(low[k], _GRID[0])
        if len(under):
            i = int(under[-1])
            last = i == len(_GRID) - 1
            high[k] = max(high[k], _GRID[-1]) if last else _crossing(below[k], i, value)
    return low, high


def _crossing(ends: Array, i: int, value: float) -> float:
    """Interpolates theta between grid points i and i + 1: an end of its region is ``value``."""
    part = (value - ends[i]) / (ends[i + 1] - ends[i])
    return float(_GRID[i] + part * (_GRID[i + 1] - _GRID[i]))
