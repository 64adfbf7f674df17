"""Confidence intervals: of means, of differences over two samples at once, of shares of rows.

Intervals of shares and of rows' values are of rows that are drawn independently of each other.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, ndtri, stdtrit

from engram.core.arrays import Array

LEVEL: Final = 0.95
_DRAWS: Final = 1000  # of the bootstrap
_AT_ONCE: Final = 2**22  # numbers
_TAILS: Final = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)

Ends = tuple[float, float] | None


class Interval(NamedTuple):
    """An estimate, and the limits of its interval of level ``LEVEL``; infinite without one."""

    mean: float
    low: float
    high: float

    @property
    def shown(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def quantile(level: Array | float, freedom: Array | float) -> Array:
    """Quantile of Student's t; of the normal distribution for infinite ``freedom``."""
    return np.asarray(np.where(np.isinf(freedom), ndtri(level), stdtrit(freedom, level)))


def holm(p_values: Array) -> Array:
    """Adjusts p-values so that rejecting those below a level errs at most so often in all.

    Holm. A Simple Sequentially Rejective Multiple Test Procedure. Scand. J. Statistics 6, 1979.
    NaN count as no hypotheses.
    """
    known = np.flatnonzero(~np.isnan(p_values))
    order = known[np.argsort(p_values[known], kind="stable")]
    times = np.arange(len(order), 0, -1)
    found = np.full(p_values.shape, np.nan)
    found[order] = np.minimum(np.maximum.accumulate(times * p_values[order]), 1.0)
    return found


# --- Of means ------------------------------------------------------------------------------


def deviation(values: Sequence[float] | Array) -> float | None:
    """Returns the standard deviation of a sample; None of a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def mean_known(values: Iterable[float | None]) -> float | None:
    """Returns the mean of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def mean_and_error(values: Array, errors: float = 1.0) -> tuple[Array, Array | None]:
    """Returns the mean over the first axis, and a multiple of its standard error.

    Both have shape (...) for ``values`` of shape (r, ...); there is no error if r = 1. Of many
    values, a multiple of 1.96 gives half the width of a 95 % interval.
    """
    mean, count = np.asarray(values.mean(axis=0)), len(values)
    if count == 1:
        return mean, None
    return mean, np.asarray(errors * values.std(axis=0, ddof=1) / np.sqrt(count))


def student(values: Array) -> Interval:
    """Returns Student's interval of an expectation, of values (n,)."""
    mean, error = mean_and_error(values)
    reach = np.inf
    if error is not None:
        reach = float(quantile((1 + LEVEL) / 2, len(values) - 1) * error)
    return Interval(float(mean), float(mean) - reach, float(mean) + reach)


def variances_of(values: Array) -> tuple[float, float]:
    """Returns the parts of the variance of a mean that are due to rows and to columns.

    Args:
        values: Shape (S, n), such as of seeds and clients, which are both drawn at random. NaN
            where there is none; no row and no column is all NaN.

    Returns:
        ``s_b^2 / S`` and ``s_a^2 / n``, of the variances of the rows' and of the columns' means; 0
        for a single row, or a single column.
    """
    found = []
    for axis in (1, 0):
        means = means_of(values, axis)
        found.append(float(means.var(ddof=1) / len(means)) if len(means) > 1 else 0.0)
    return found[0], found[1]


def means_of(values: Array, axis: int) -> Array:
    """Returns means of the values that are known, faster than ``np.nanmean``."""
    known = ~np.isnan(values)
    return np.asarray(np.where(known, values, 0.0).sum(axis) / known.sum(axis))


def error_of(by_rows: float, by_columns: float, rows: int, columns: int) -> tuple[float, float]:
    """Returns a mean's standard error, and its degrees of freedom by Satterthwaite (1946).

    The arguments are those of ``variances_of``, and the numbers of rows and columns.
    """
    total = by_rows + by_columns
    parts = by_rows**2 / max(rows - 1, 1) + by_columns**2 / max(columns - 1, 1)
    return total**0.5, max(total**2 / parts, 1.0) if parts else 1.0


def grouped(runs: Sequence[Sequence[Array]]) -> Interval:
    """Returns the interval of a mean over runs; their groups of values are independent.

    With the sums s_g of a run's ``(x - mean) / n`` by group, the variance is the mean over runs of
    ``G / (G - 1) sum_g s_g^2``, plus the runs' own, ``s_b^2 / S``: groups of two runs may have the
    same clients. The quantile is Student's, by ``error_of``.
    """
    means = np.array([np.concatenate(groups).mean() for groups in runs])
    mean, least = float(means.mean()), min(map(len, runs))
    if least < 2:
        return Interval(mean, -np.inf, np.inf)
    sums = [
        np.array([(g - x).sum() for g in groups]) / sum(map(len, groups))
        for groups, x in zip(runs, means, strict=True)
    ]
    by_groups = float(np.mean([(s**2).sum() * len(s) / (len(s) - 1) for s in sums]))
    by_runs = float(means.var(ddof=1)) / len(means) if len(means) > 1 else 0.0
    error, degrees = error_of(by_runs, by_groups, len(means), least)
    half = float(quantile((1 + LEVEL) / 2, degrees)) * error
    return Interval(mean, mean - half, mean + half)


def crossed(gaps: Array, ratio: float) -> Interval:
    """Returns the interval of a mean difference over splits and tasks, both drawn at random.

    The variance is the sum of that of the tasks' means over splits, ``s^2 / M``, and of that of the
    splits' means over tasks. Splits of the same rows are correlated, so the latter is
    ``s^2 (1 / S + ratio)`` (Nadeau and Bengio 2003). The quantile is Student's.

    Args:
        gaps: The differences, by split and task, shape (S, M).
        ratio: Number of rows to be predicted, over the number of those learned from.
    """
    splits, tasks = gaps.shape
    by_splits, by_tasks = variances_of(gaps)
    error, degrees = error_of(by_splits * (1 + splits * ratio), by_tasks, splits, tasks)
    mean, half = float(gaps.mean()), np.inf
    if gaps.size > 1:
        half = float(quantile((1 + LEVEL) / 2, degrees)) * error
    return Interval(mean, mean - half, mean + half)


# --- Of rows -------------------------------------------------------------------------------


def wilson(share: float, count: float, z: float) -> tuple[float, float]:
    """Returns the limits of Wilson's interval, JASA 1927, of a share of ``count`` draws."""
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z * np.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2) / (1 + z**2 / count)
    return max(middle - float(half), 0.0), min(middle + float(half), 1.0)


def of_proportion(hits: float, rows: int) -> tuple[float, float]:
    """Returns the confidence interval of a probability, from ``hits`` in ``rows`` trials.

    It is Clopper and Pearson's (1934), whose coverage is at least the level at any probability and
    number of rows; also where all rows are hits.
    """
    below, above = _TAILS
    low = betaincinv(hits, rows - hits + 1, below) if hits > 0 else 0.0
    high = betaincinv(hits + 1, rows - hits, above) if hits < rows else 1.0
    return float(low), float(high)


def of_mean(values: Array) -> Ends:
    """Returns the interval of an expectation by the bootstrap-t, of values (n,).

    Resampled means are taken in units of their own standard errors (Efron and Tibshirani, 1993,
    Section 12.5), so that the interval is wide where rows are few, and longer towards a long tail.
    It is too short where few rows have nearly all of the loss: of one large loss in ten it covers
    the expectation in 67 % with 10 rows, 87 % with 20; of one in twenty in 79 % with 30.

    Returns:
        The ends; None if all values are alike, or are too few to tell their spread: up to 3.
    """
    n = len(values)
    if n < 2 or not values.min() < values.max():  # their deviation is rounded
        return None
    mean, error = values.mean(), values.std() / np.sqrt(n)
    rng = np.random.default_rng(0)
    size = max(1, _AT_ONCE // n)
    found: list[Array] = []
    for begin in range(0, _DRAWS, size):
        some = values[rng.integers(n, size=(min(size, _DRAWS - begin), n))]
        with np.errstate(divide="ignore", invalid="ignore"):  # rows that are all the same one
            found.append((some.mean(1) - mean) / (some.std(1) / np.sqrt(n)))
    t = np.nan_to_num(np.concatenate(found), nan=0.0, posinf=np.inf, neginf=-np.inf)
    low, high = mean - error * np.quantile(t, _TAILS[::-1], method="higher")
    return (float(low), float(high)) if np.isfinite([low, high]).all() else None


def of_draws(size: int, value: Callable[[npt.NDArray[np.int64]], float]) -> Ends:
    """Returns the interval between the quantiles of resampled values, the percentile bootstrap.

    It is for figures that are no mean over rows. With few rows, its coverage is below the level.
    ``value`` computes the figure of rows by their numbers; NaN where it has none.

    Returns:
        The ends; None if they are the same, or the figure is seldom defined.
    """
    rng = np.random.default_rng(0)
    draws = np.array([value(rng.integers(size, size=size)) for _ in range(_DRAWS // 2)])
    known = draws[np.isfinite(draws)]
    if len(known) < len(draws) // 2:
        return None
    low, high = np.quantile(known, _TAILS).tolist()
    return (low, high) if low < high else None
