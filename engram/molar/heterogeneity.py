"""How tasks' coefficients scatter, column by column: a test, a variance, and who is apart.

Of one column, tasks have estimates ``gap_m`` with known variances ``v_m``. Most tasks' true values
scatter around a common center with a variance t, which may be 0; some may lie far apart.
"""

from typing import Final, NamedTuple

import numpy as np
from scipy.special import chdtrc, chdtri, ndtr

from engram.arrays import Array, Bools
from engram.checks import require
from engram.molar.median import weighted_median

__all__ = ["REACH", "Spread", "spread"]

REACH: Final = 3.0
"""Standard deviations from the shared value, beyond which a coefficient is a task's own."""

_HALVINGS: Final = 40
_STEPS: Final = 100
_STILL: Final = 1e-9  # of a variance: no change
_PASSES: Final = 3  # over who is apart, which depends on the variance, and that on who is apart
_MIDDLE: Final = float(chdtri(1, 0.5))  # of a squared standard normal


class Spread(NamedTuple):
    """The scatter of each of d columns.

    Attributes:
        center: The weighted mean of the tasks that are not apart, shape (d,).
        variance: t, of their true values around it, shape (d,); 0: they are alike.
        apart: Which tasks are apart, shape (M, d).
        p_value: Of the hypothesis that the tasks that are not apart are alike (Cochran's Q).
    """

    center: Array
    variance: Array
    apart: Bools
    p_value: Array


def spread(
    gaps: Array, variances: Array, *, reach: float = np.inf, alike: Array | float = 1.0
) -> Spread:
    """Estimates center and scatter of each column, with breakdown point one half.

    It begins with the weighted median and with the t for which the median of
    ``gap^2 / (v + t)`` is that of a squared normal. A task is apart if its gap is more than
    ``reach`` standard deviations ``sqrt(v + t)``. The others' weighted mean is the center, and t
    solves ``sum gap^2 / (v + t) = (m - 1) k`` (Paule and Mandel 1982), where k is the mean square
    of a normal that is cut off at ``reach``.

    Args:
        gaps: Shape (M, d).
        variances: v, > 0, shape (M, d); infinite where a task says nothing.
        reach: In standard deviations, > 0.
        alike: Columns with a p-value above it count as alike (t = 0): 0 takes all columns for
            alike, and 1 none but those whose estimate is 0.

    Raises:
        ValueError: If reach or alike is out of range.
    """
    require(reach > 0, "reach", reach, "above 0")
    alike = np.asarray(alike, dtype=np.float64)
    require(bool(((alike >= 0) & (alike <= 1)).all()), "alike", alike, "in [0, 1]")
    known = np.isfinite(variances)
    gaps = np.where(known, gaps, 0.0)
    usual = _middle(np.where(known, variances, np.nan))
    center = weighted_median(gaps, known / (variances + usual))
    t = _median_scatter(gaps - center, np.where(known, variances, np.nan))
    for _ in range(_PASSES):
        apart = known & (np.abs(gaps - center) > reach * np.sqrt(variances + t))
        apart &= 2 * apart.sum(axis=0) < known.sum(axis=0)  # a majority cannot be apart from it
        kept = known & ~apart
        center = np.average(gaps, axis=0, weights=kept / (variances + t))
        least = (kept.sum(axis=0) - 1) * _cut_square(reach)
        t = _mean_scatter(gaps - center, variances, kept, least)
    exact = kept / variances
    mean = np.average(gaps, axis=0, weights=exact)
    freedom = np.maximum(kept.sum(axis=0) - 1, 1)
    p_value = chdtrc(freedom, (exact * (gaps - mean) ** 2).sum(axis=0))
    same = (p_value > alike) | (alike == 0)
    return Spread(np.where(same, mean, center), np.where(same, 0.0, t), apart, p_value)


def _median_scatter(gaps: Array, variances: Array) -> Array:
    """Returns t >= 0 at which the median of ``gap^2 / (v + t)`` is that of a squared normal."""
    squares = np.where(np.isnan(variances), np.nan, gaps**2)
    low = np.zeros(gaps.shape[1])
    high = _middle(squares) / _MIDDLE
    positive = _middle(squares / variances) > _MIDDLE
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = _middle(squares / (variances + middle)) > _MIDDLE
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.where(positive, high, 0.0)


def _middle(values: Array) -> Array:
    """Returns the median of the numbers of each column: ``nanmedian``, but ten times as fast."""
    ordered = np.sort(values, axis=0)  # NaN last
    count = (~np.isnan(values)).sum(axis=0)
    ends = [np.take_along_axis(ordered, i[None], axis=0)[0] for i in ((count - 1) // 2, count // 2)]
    return np.asarray((ends[0] + ends[1]) / 2)


def _mean_scatter(gaps: Array, variances: Array, kept: Bools, least: Array) -> Array:
    """Returns t >= 0 at which ``sum gap^2 / (v + t)`` over the kept tasks is ``least``.

    The sum is convex and falls in t, so Newton's method from t = 0 never goes too far.
    """
    squares, t = kept * gaps**2, np.zeros(gaps.shape[1])
    for _ in range(_STEPS):
        ratios = squares / (variances + t)
        slope = (ratios / (variances + t)).sum(axis=0)
        excess = np.maximum(ratios.sum(axis=0) - least, 0.0)
        step = np.divide(excess, slope, out=np.zeros_like(slope), where=slope > 0)
        t = t + step
        if (step <= _STILL * t).all():
            break
    return t


def _cut_square(reach: float) -> float:
    """Returns the mean square of a standard normal within ±reach."""
    if reach == np.inf:
        return 1.0
    inside = 2 * float(ndtr(reach)) - 1
    density = float(np.exp(-(reach**2) / 2) / np.sqrt(2 * np.pi))
    return 1 - 2 * reach * density / inside
