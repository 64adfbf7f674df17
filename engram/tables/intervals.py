"""Confidence intervals for each task's coefficients (Appendix F).

If a task's own estimate lies near the shared one, the interval is centered at the shared value and
narrow, since many tasks contribute to it; otherwise it is the task's own interval.

The intervals are valid if a coefficient either equals the shared one or differs from it by many
standard errors. A coefficient that differs by about three is mostly treated as shared, and missed:
at gaps of 3 sigma / sqrt(n) its coverage was 0.12 instead of 0.95. No procedure has both short
intervals and coverage of small differences (Cai and Guo 2017, as Appendix F says).
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
from scipy.special import ndtri

from engram.core.arrays import Array
from engram.core.checks import require
from engram.scoring.intervals import quantile
from engram.tables.median import weighted_median
from engram.tables.shrinkage import Shared, Weights, median_weights
from engram.tables.site import SiteEstimate

__all__ = ["IntervalMethod", "Intervals", "own_interval", "shared_half_width", "site_interval"]

IntervalMethod = Literal["practical", "paper"]

_ODD: Final = 10.0  # times the usual: standard errors that are counted as no larger
_MOST: Final = 0.45  # the largest alpha_(B, delta) that Lemma 14 speaks of


class Intervals(NamedTuple):
    """Limits of confidence intervals, shapes (..., d); infinite for undetermined coefficients."""

    low: Array
    high: Array


def shared_half_width(
    sites: Sequence[SiteEstimate],
    shared: Shared,
    *,
    level: float = 0.95,
    method: IntervalMethod = "practical",
    weights: Weights = "precision",
    max_weight: float = np.inf,
) -> Array:
    """Returns half the width of an interval around each shared coefficient: the server's part.

    Let G be the tasks that agree with the shared value, w_m the median's weights normalized over G,
    b the share of all weight outside G, W2 the sum of w_m^2, and s the weighted mean of the
    standard errors over G:

    - ``practical``: ``Phi^-1(1/2 + a) s`` with ``a = b / (2 (1 - b)) + z_(1 - alpha/4) sqrt(W2) /
      2``: the quantile of the agreeing tasks at which the median can lie if all others are on one
      side, and the normal approximation of how many tasks lie below it. By equal weights this is
      ``|B| / (2 (M - |B|)) + z / (2 sqrt(M - |B|))``.
    - ``paper``: ``1.25 C_0.45 (b + sqrt(1.01 delta W2)) s``, ``delta = ln max(8/alpha, 2n) / 2``.
      Its constant of Lemma 12 is 324, so that these are 20 to 86 times as wide as a task's own.
      (The text divides by M - |B| under the root, which is this for equal weights.)

    A task disagrees if its own estimate is farther than ``sqrt(2 ln max(2 n_m, 8 / alpha))``
    standard errors away. (F's ``sqrt(2) ln max(...)`` is not what its proof's tail bound needs.)

    Args:
        sites: All tasks' estimates.
        shared: The result of ``combine``.
        level: 1 - alpha, in (0, 1).
        method: Which constants to use.
        weights: See ``combine``.
        max_weight: See ``combine``.

    Returns:
        Shape (d,). Infinite where too many tasks disagree or too few are left for an interval.
    """
    require(0 < level < 1, "level", level, "in (0, 1)")
    require(method in ("practical", "paper"), "method", method, "practical or paper")
    alpha = 1 - level
    each = median_weights(sites, weights, max_weight)
    errors = np.stack([site.standard_error for site in sites])
    own = np.stack([site.coef for site in sites])
    reach = np.array([_reach(site.size, alpha) for site in sites])[:, None]
    known = each > 0
    errors = np.where(known, errors, 0.0)
    agree = np.where(known & (np.abs(own - shared.coef) <= reach * errors), each, 0.0)
    total, agreeing = each.sum(axis=0), agree.sum(axis=0)
    some = agreeing > 0
    share = np.divide(agree, agreeing, out=np.zeros_like(agree), where=some)
    odd = np.where(some, 1 - agreeing / total, 1.0)
    usual = weighted_median(errors, np.where(some, agree, 1.0))  # one task can claim anything
    errors = np.minimum(errors, _ODD * usual)
    squares, error = (share**2).sum(axis=0), (share * errors).sum(axis=0)
    half = np.full_like(shared.coef, np.inf)
    if method == "practical":
        quantile = float(ndtri(1 - alpha / 4))
        part = np.divide(odd, 2 * (1 - odd), out=np.full_like(odd, np.inf), where=some)
        part += quantile * np.sqrt(squares) / 2
        sure = some & (part < 0.5)
        half[sure] = ndtri(0.5 + part[sure]) * error[sure]
    else:
        size = max(site.size for site in sites)
        delta = np.log(max(8 / alpha, 2 * size)) / 2
        part = odd + np.sqrt(1.01 * delta * squares)
        sure = some & (part < _MOST)
        half[sure] = 1.25 * _constant(_MOST) * part[sure] * error[sure]
    return half


def own_interval(site: SiteEstimate, *, level: float = 0.95) -> Intervals:
    """Returns a task's own interval, ``coef ± q sigma sqrt(v_k)``, as for OLS.

    q is the quantile of level 1 - alpha/2: of Student's t if sigma is estimated, else of the normal
    distribution.
    """
    half = float(quantile((1 + level) / 2, site.freedom)) * site.standard_error
    return Intervals(site.coef - half, site.coef + half)


def site_interval(
    site: SiteEstimate,
    shared: Shared,
    half_width: Array,
    *,
    level: float = 0.95,
    method: IntervalMethod = "practical",
    intercept: bool = False,
) -> Intervals:
    """Returns the task's own interval where it disagrees, else the shared one: the task's part.

    Both have level 1 - alpha/2, since the data decide between them; so the task's own has the
    quantile of level 1 - alpha/4. (The paper's z_(1 - alpha/2) has level 1 - alpha.) The practical
    method uses the shared interval only where it is the narrower one; the paper's always does.

    Args:
        site: The task's estimate.
        shared: The result of ``combine``.
        half_width: The result of ``shared_half_width`` for the same level and method.
        level: 1 - alpha, in (0, 1).
        method: Which constants to use.
        intercept: Whether the last coefficient is an intercept, which is always the task's own,
            with the interval of ``own_interval``.
    """
    alpha = 1 - level
    error = site.standard_error
    known = site.determined
    near = np.abs(site.coef - shared.coef) <= _reach(site.size, alpha) * error
    own = float(quantile(1 - alpha / 4, site.freedom)) * error
    near &= known & ((half_width <= own) if method == "practical" else np.isfinite(half_width))
    if intercept:
        near[-1], own[-1] = False, quantile((1 + level) / 2, site.freedom) * error[-1]
    center, half = np.where(near, shared.coef, site.coef), np.where(near, half_width, own)
    return Intervals(center - half, center + half)


def _reach(size: float, alpha: float) -> float:
    return float(np.sqrt(2 * np.log(max(2 * size, 8 / alpha))))


def _constant(alpha: float) -> float:
    """Returns C_alpha of Lemma 12.

    The lemma's proof holds for every epsilon in (0, 1/2 - alpha), so the bound is the smallest of
    them, and not, as it is printed, the largest, which is infinite.
    """
    epsilon = np.linspace(0, 0.5 - alpha, 10_001)[1:-1]  # smooth, with one extremum inside
    density = np.exp(-(ndtri(epsilon) ** 2) / 2) / np.sqrt(2 * np.pi)
    return float(1 / (density * (1 - 2 * alpha / (1 - 2 * epsilon))).max())
