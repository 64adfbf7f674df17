"""Heterogeneity of tasks' coefficients, column by column: a test, a variance, and who is apart.

Of one column, tasks have estimates ``gap_m`` with known variances ``v_m``. Most tasks' true values
scatter around a common center with a variance t, which may be 0; some may lie far apart.
"""

from typing import Final, NamedTuple

import numpy as np
from scipy.special import chdtrc, chdtri, ndtr

from engram.core.arrays import Array, Bools
from engram.core.checks import require
from engram.tables.median import weighted_median

REACH: Final = 3.0
"""Standard deviations from the shared value, beyond which a coefficient is a task's own."""

_HALVINGS: Final = 40
_NIL: Final = 1e-9  # of the least variance: a scatter of 0
_FAR: Final = 10.0  # of the largest variance and squared gap: beyond, a likelihood falls
_PASSES: Final = 3  # over who is apart, which depends on the variance, and that on who is apart
_MIDDLE: Final = float(chdtri(1, 0.5))  # of a squared standard normal


class Heterogeneity(NamedTuple):
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


def estimate_heterogeneity(
    gaps: Array,
    variances: Array,
    *,
    reach: float = np.inf,
    alike: float = 1.0,
    scattered: Bools | bool = False,
) -> Heterogeneity:
    """Estimates center and scatter of each column, with breakdown point one half.

    It begins with the weighted median and with the t for which the median of
    ``gap^2 / (v + t)`` is that of a squared normal. A task is apart if its gap is more than
    ``reach`` standard deviations ``sqrt(v + t)``. The others' weighted mean is the center, and t
    is their variance by restricted likelihood: see ``restricted``.

    Args:
        gaps: Shape (M, d).
        variances: v, > 0, shape (M, d); infinite where a task says nothing.
        reach: In standard deviations, > 0.
        alike: Columns with a p-value above it count as alike (t = 0): 0 takes all columns for
            alike, and 1 none but those whose estimate is 0.
        scattered: Columns, shape (d,), that are known to scatter: their t is above 0, whatever the
            test of heterogeneity says.

    Raises:
        ValueError: If reach or alike is out of range.
    """
    require(reach > 0, "reach", reach, "above 0")
    require(0 <= alike <= 1, "alike", alike, "in [0, 1]")
    known = np.isfinite(variances)
    gaps = np.where(known, gaps, 0.0)
    scattered = np.broadcast_to(scattered, gaps.shape[1])
    usual = _middle(np.where(known, variances, np.nan))
    center = weighted_median(gaps, known / (variances + usual))
    t = _median_scatter(gaps - center, np.where(known, variances, np.nan))
    for _ in range(_PASSES):
        apart = known & (np.abs(gaps - center) > reach * np.sqrt(variances + t))
        apart &= 2 * apart.sum(axis=0) < known.sum(axis=0)  # a majority cannot be apart from it
        kept = known & ~apart
        cut = np.where(kept, variances, np.inf)
        t = restricted(gaps, cut, normal=_cut_square(reach), scattered=scattered)
        center = np.average(gaps, axis=0, weights=1 / (cut + t))
    exact = 1 / cut
    mean = np.average(gaps, axis=0, weights=exact)
    freedom = np.maximum(kept.sum(axis=0) - 1, 1)
    p_value = chdtrc(freedom, (exact * (gaps - mean) ** 2).sum(axis=0))
    same = ~scattered & ((p_value > alike) | (alike == 0))
    return Heterogeneity(np.where(same, mean, center), np.where(same, 0.0, t), apart, p_value)


def restricted(
    gaps: Array, variances: Array, *, normal: float = 1.0, scattered: Bools | bool = False
) -> Array:
    """Returns the scatter t >= 0 of each column that maximizes the restricted likelihood.

    Gaps are normal with a common mean and variances ``v + t``. With ``w = 1 / (v + t)`` and the
    weighted mean ``mu = sum w gap / sum w``, twice the log of the likelihood of their contrasts,
    which do not depend on the mean, is (Patterson and Thompson 1971)

        L(t) = sum log w - log sum w - sum w (gap - mu)^2 + const,
        L'(t) = sum w^2 (gap - mu)^2 - (sum w - sum w^2 / sum w).

    With equal v that is 0 at ``t = sum (gap - mu)^2 / (m - 1) - v``, the estimate of the analysis
    of variance; t is 0 where L' is not positive there. Where v differ, a task counts by ``w^2``:
    one that says little of itself says little about the scatter.

    With rare classes there is often no scatter to be seen, and the maximum is at 0, even if
    there is one that matters. Columns that are known to scatter maximize ``L(t) + log t`` (Chung,
    Rabe-Hesketh, Dorie, Gelman, Liu 2013): it pulls t away from 0 by about a standard error, and
    matters no more where t is large beside v. It takes three tasks to have a maximum.

    Args:
        gaps: Shape (M, d).
        variances: v, > 0, shape (M, d); infinite where a task says nothing.
        normal: Mean square of a standard normal in the range to which gaps are cut, in (0, 1]:
            squared gaps are divided by it, so that the cut does not bias t.
        scattered: Columns, shape (d,), that are known to scatter.
    """
    kept = np.isfinite(variances)
    pull = np.where(scattered & (kept.sum(axis=0) > 2), 1.0, 0.0)  # of log t

    def rises(t: Array) -> Bools:
        w = 1 / (variances + t)
        total = w.sum(axis=0)
        squares = (gaps - (w * gaps).sum(axis=0) / total) ** 2
        derivative = (w**2 * squares).sum(axis=0) / normal - total + (w**2).sum(axis=0) / total
        return np.asarray(t * derivative + pull > 0)

    range_ = np.ptp(np.where(kept, gaps, (kept * gaps).sum(axis=0) / kept.sum(axis=0)), axis=0)
    most = np.where(kept, variances, 0.0).max(axis=0)
    low, high = _NIL * variances.min(axis=0), _FAR * np.maximum(most, range_**2 / normal)
    positive = rises(low)
    for _ in range(_HALVINGS):
        middle = np.sqrt(low) * np.sqrt(high)
        above = rises(middle)
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.where(positive, high, 0.0)


def _median_scatter(gaps: Array, variances: Array) -> Array:
    """Solves for t >= 0: the median of ``gap^2 / (v + t)`` is that of a squared normal."""
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


def _cut_square(reach: float) -> float:
    """Returns the mean square of a standard normal within ±reach."""
    if reach == np.inf:
        return 1.0
    inside = 2 * float(ndtr(reach)) - 1
    density = float(np.exp(-(reach**2) / 2) / np.sqrt(2 * np.pi))
    return 1 - 2 * reach * density / inside
