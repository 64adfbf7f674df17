"""Confidence intervals of scores, of rows that are drawn independently of each other."""

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

LEVEL: Final = 0.95
_DRAWS: Final = 1000  # of the bootstrap
_AT_ONCE: Final = 2**22  # numbers
_TAILS: Final = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)

Ends = tuple[float, float] | None
_Array = npt.NDArray[np.float64]


def of_proportion(hits: float, rows: int) -> tuple[float, float]:
    """Returns the confidence interval of a probability, from ``hits`` in ``rows`` trials.

    It is Clopper and Pearson's (1934), whose coverage is at least the level at any probability and
    number of rows; also where all rows are hits.
    """
    below, above = _TAILS
    low = beta.ppf(below, hits, rows - hits + 1) if hits > 0 else 0.0
    high = beta.ppf(above, hits + 1, rows - hits) if hits < rows else 1.0
    return float(low), float(high)


def of_mean(values: _Array) -> Ends:
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
    found: list[_Array] = []
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
