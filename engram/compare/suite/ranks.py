"""Ranks of methods over several federations, and which of them differ from a control."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

_CONFIDENCE = 0.95


class Rank(NamedTuple):
    """A method's rank over federations, 1 being the best.

    Attributes:
        mean: The mean rank, ties being averaged.
        low: Lower end of its interval.
        high: Upper end.
        p: Probability, under the hypothesis that the method ranks as the control does, of so large
            a difference of mean ranks; adjusted by Holm's method for all methods. None of the
            control.
    """

    mean: float
    low: float
    high: float
    p: float | None


def ranks(
    scores: Mapping[str, Sequence[float]], higher: Sequence[bool], control: str
) -> tuple[float, dict[str, Rank]]:
    """Ranks k methods on N federations.

    Friedman's test asks whether any method ranks otherwise than another. Each is then compared with
    the control by ``z = (R_i - R_control) / sqrt(k (k + 1) / (6 N))`` of their mean ranks R, with
    Holm's adjustment (Demsar. Statistical Comparisons of Classifiers over Multiple Data Sets. JMLR
    2006, sections 3.2.2 and 3.2.3). Of few federations the normal distribution is cautious: ranks
    have ends, so that large differences are rarer than it says. The intervals are Student's, of a
    method's N ranks; they are of one method each, and decide nothing.

    Args:
        scores: Each method's N scores.
        higher: For each federation, whether higher scores are better.
        control: The method that the others are compared with.

    Returns:
        The p value of Friedman's test, and each method's rank, the best first.

    Raises:
        ValueError: There are fewer than three methods or two federations.
    """
    names = list(scores)
    table = np.array([scores[name] for name in names], dtype=float).T  # (N, k)
    n, k = table.shape
    if k < 3 or n < 2:
        raise ValueError(f"ranks need at least 3 methods and 2 federations, got {k} and {n}")
    each = stats.rankdata(np.where(np.array(higher)[:, None], -table, table), axis=1)
    friedman = 1.0 if np.ptp(each, axis=1).max() == 0 else stats.friedmanchisquare(*each.T).pvalue
    means = each.mean(axis=0)
    width = stats.t.ppf((1 + _CONFIDENCE) / 2, n - 1) * each.std(axis=0, ddof=1) / np.sqrt(n)
    z = (means - means[names.index(control)]) / np.sqrt(k * (k + 1) / (6 * n))
    p = dict(zip(names, 2 * stats.norm.sf(np.abs(z)), strict=True))
    del p[control]
    adjusted = holm(p)
    found = {
        name: Rank(float(m), float(max(1, m - w)), float(min(k, m + w)), adjusted.get(name))
        for name, m, w in zip(names, means, width, strict=True)
    }
    return float(friedman), dict(sorted(found.items(), key=lambda item: item[1].mean))


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Adjusts p values so that rejecting those below a level errs at most so often in all.

    Holm. A Simple Sequentially Rejective Multiple Test Procedure. Scand. J. Statistics 6, 1979.
    """
    found: dict[str, float] = {}
    largest = 0.0
    for done, name in enumerate(sorted(p, key=p.__getitem__)):
        largest = max(largest, min(1.0, (len(p) - done) * p[name]))
        found[name] = largest
    return found
