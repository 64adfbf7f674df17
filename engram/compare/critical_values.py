"""Critical values of the simultaneous intervals of ``compare.differences``, at many levels."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from engram.scoring.intervals import LEVEL

_DRAWS: Final = 5000  # of the distribution of the largest |t|
_PARTS: Final = 20  # of the draws, so that a part stays in the processor's cache
_SHARE: Final = 0.6  # of the mean of pairs' variances, below which none is taken to be
_MOST: Final = 3.0  # times the upper quartile, at which variances are cut for this mean
_NONE: Final = np.finfo(np.float32).tiny  # variance of methods that do not vary
_FURTHEST: Final = 7.0  # logarithm of the ratio of the methods' variances that differ most

Reals = npt.NDArray[np.float64]

ALPHAS: Final[Reals] = np.sort(np.append(np.geomspace(1 / _DRAWS, 1, 400), 1 - LEVEL))
"""Probabilities that any interval is wrong, from the least that the draws show to 1."""

AT: Final = int(np.searchsorted(ALPHAS, 1 - LEVEL))
"""The place of that of the intervals."""


def floor_of(variances: npt.NDArray[Any], pairs: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Returns the least variance over seeds that a pair is taken to have, given all pairs'.

    Few seeds may agree by chance, so that pairs lend each other variance. No single noisy method
    raises it: the method with the largest sum of variances is left out, and those of other pairs
    are cut at a multiple of their upper quartile.

    Args:
        variances: Shape (..., pairs); at least one pair.
        pairs: The methods' numbers, shape (2, pairs). The floor (..., 1) is 0 for a single pair.
    """
    member = (np.arange(pairs.max() + 1)[:, None, None] == pairs).any(axis=1)
    rest = ~member[(variances @ member.T).argmax(axis=-1)]
    if not rest.any():
        return np.zeros((*variances.shape[:-1], 1))
    known = variances[rest].reshape(*variances.shape[:-1], -1)
    most = _MOST * np.quantile(known, 0.75, axis=-1, keepdims=True)
    return np.asarray(_SHARE * np.minimum(known, most).mean(axis=-1, keepdims=True))


@lru_cache
def of_clients(methods: int, clients: int) -> Reals:
    """Returns Student's quantiles for the means of clients, of each of all pairs of methods.

    Returns:
        One for each of ``ALPHAS``, which Bonferroni divides among the pairs.
    """
    pairs = methods * (methods - 1) / 2
    return np.asarray(-stdtrit(clients - 1, ALPHAS / (2 * pairs)))


@lru_cache
def of_seeds(methods: int, seeds: int) -> Reals:
    """Returns the quantiles of the largest |t| over all pairs of methods that are alike.

    The variance in a pair's t is at least ``floor_of`` all pairs'. How much methods vary over seeds
    is not known, and differs: a quantile is the largest of several patterns, in which some methods
    vary and the others do not at all, or some vary more than others. Seeds' common effects cancel
    in differences.

    Returns:
        One for each of ``ALPHAS``.
    """
    least = np.asarray(-stdtrit(seeds - 1, ALPHAS / 2))  # where one method varies
    if methods == 2:
        return least
    z = np.random.default_rng(0).standard_normal((_DRAWS, methods, seeds), dtype=np.float32)
    number = np.arange(methods)
    patterns = [
        np.where(number < varying, 1.0, 0.0)
        for varying in {2, *(-(-methods // part) for part in (2, 3, 4)), methods} - {1}
    ]
    patterns.append(np.where(number < 1, np.exp(_FURTHEST / 2), 1.0))
    patterns += [np.exp(np.linspace(0, ratio, methods)) for ratio in (_FURTHEST / 2, _FURTHEST)]
    draws = np.concatenate([_largest(part, patterns) for part in np.array_split(z, _PARTS)], axis=1)
    return np.asarray(np.max([least, *(np.quantile(each, 1 - ALPHAS) for each in draws)], axis=0))


def _largest(z: npt.NDArray[np.float32], patterns: Sequence[Reals]) -> Reals:
    """Returns the largest |t| of each draw, (patterns, draws), of effects (draws, methods, seeds).

    A pattern has the methods' variances, by which moments of effects of variance 1 are scaled.
    """
    one, other = pairs = np.array(np.triu_indices(z.shape[1], 1))
    means, seeds = z.mean(axis=2), z.shape[2]
    centered = z - means[..., None]
    products = centered @ centered.transpose(0, 2, 1) / (seeds * (seeds - 1))
    of_one, of_other, both = (products[:, i, j] for i, j in ((one, one), (other, other), pairs))
    found = []
    for pattern in np.sqrt(patterns, dtype=np.float32):
        a, b = pattern[pairs]
        variances = np.maximum(a**2 * of_one + b**2 * of_other - 2 * a * b * both, _NONE)
        gaps = a * means[:, one] - b * means[:, other]
        found.append((gaps**2 / np.maximum(variances, floor_of(variances, pairs))).max(axis=1))
    return np.sqrt(found)
