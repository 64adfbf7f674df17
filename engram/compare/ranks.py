"""Ranks of methods over several federations, and whether they differ."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from engram.compare.comparison_api import Comparison
from engram.compare.results import metric_called
from engram.core.checks import must
from engram.runs.run import Run
from engram.scoring.intervals import holm, student
from engram.settings.errors import Refused

_LEAST: Final = 3  # methods, and federations, for Friedman's test


def ranks(comparisons: Mapping[str, Comparison], control: str, *, metric: str = "") -> pd.DataFrame:
    """Ranks methods by their mean scores over several federations (Demsar, JMLR 2006).

    Friedman's test asks whether all methods are alike; each is then compared with one control, by
    the normal distribution of differences of mean ranks, with Holm's correction. The federations
    are what is drawn at random: with few of them, only large differences of ranks are shown.

    Args:
        comparisons: By the name of the federation; at least three.
        control: The row that the others are compared with, such as that of training alone.
        metric: What is compared; by default each comparison's first.

    Returns:
        A row for each method that all comparisons have, the best first: a column for each
        federation with its score in the round that the comparison shows, ``rank``, its mean rank
        (1 is the best), ``p`` against the control, corrected, and ``friedman``, the p-value of all
        methods, the same in each row.

    Raises:
        Refused: There are too few federations or methods, or no such control or metric.
    """
    if len(comparisons) < _LEAST:
        raise Refused(must("comparisons", len(comparisons), f"at least {_LEAST} of them"))
    columns, signs = {}, {}
    for name, comparison in comparisons.items():
        columns[name], signs[name] = _scores(comparison, metric)
    table = pd.DataFrame(columns).dropna()
    if len(table) < _LEAST:
        expected = f"comparisons that have at least {_LEAST} methods in common"
        raise Refused(must("comparisons", ", ".join(table.index) or "none", expected))
    if control not in table.index:
        raise Refused(must("control", control, f"one of {', '.join(table.index)}"))
    scores = {name: list(row) for name, row in table.iterrows()}
    friedman, found = rank_methods(scores, [signs[name] > 0 for name in table], control)
    table["rank"] = pd.Series({name: rank.mean for name, rank in found.items()})
    table["p"] = pd.Series({name: rank.p for name, rank in found.items()}, dtype=float)
    table["friedman"] = friedman
    return table.sort_values("rank")


def _scores(comparison: Comparison, metric: str) -> "tuple[pd.Series[float], int]":
    (first, *_), *_ = comparison.runs.values()
    chosen = metric_called(metric, Run(first.folder).metrics)
    return comparison.table[chosen.name].astype(float), chosen.sign


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


def rank_methods(
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
    z = (means - means[names.index(control)]) / np.sqrt(k * (k + 1) / (6 * n))
    p = 2 * stats.norm.sf(np.abs(z))
    p[names.index(control)] = np.nan
    adjusted: dict[str, float | None] = dict(zip(names, holm(p).tolist(), strict=True))
    adjusted[control] = None
    found = {}
    for name, own in zip(names, map(student, each.T), strict=True):
        found[name] = Rank(own.mean, max(1.0, own.low), min(k, own.high), adjusted[name])
    return float(friedman), dict(sorted(found.items(), key=lambda item: item[1].mean))
