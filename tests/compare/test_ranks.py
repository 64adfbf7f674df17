"""Ranks over federations, against pandas, scipy and statsmodels."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from engram.compare.ranks import holm
from engram.compare.ranks import rank_methods as ranks

_RNG = np.random.default_rng(0)
_SHIFTS = {"a": 0, "b": 1, "c": 0.3, "d": 2}
_SCORES = {name: list(_RNG.normal(shift, 1, 14).round(1)) for name, shift in _SHIFTS.items()}


def _ranked():
    return pd.DataFrame(_SCORES).rank(axis=1, ascending=False)


def test_ranks_are_means_with_students_intervals():
    friedman, found = ranks(_SCORES, [True] * 14, "a")
    each = _ranked()
    assert list(found) == list(each.mean().sort_values().index)
    assert friedman == pytest.approx(stats.friedmanchisquare(*_SCORES.values()).pvalue)
    for name, rank in found.items():
        low, high = stats.t.interval(0.95, 13, each[name].mean(), stats.sem(each[name]))
        assert rank[:3] == pytest.approx((each[name].mean(), max(1, low), min(4, high)))


def test_others_are_compared_with_the_control_by_holms_method():
    _, found = ranks(_SCORES, [True] * 14, "a")
    means = _ranked().mean()
    others = list("bcd")
    z = [(means[name] - means["a"]) / math.sqrt(4 * 5 / (6 * 14)) for name in others]
    alone = [math.erfc(abs(value) / math.sqrt(2)) for value in z]
    expected = multipletests(alone, method="holm")[1]
    assert [found[name].p for name in others] == pytest.approx(list(expected))
    assert found["a"].p is None


def test_lower_scores_may_be_better():
    mixed = [True] * 7 + [False] * 7
    flipped = {name: [*values[:7], *(-v for v in values[7:])] for name, values in _SCORES.items()}
    assert ranks(flipped, mixed, "a") == ranks(_SCORES, [True] * 14, "a")


def test_methods_that_tie_everywhere_do_not_differ():
    friedman, found = ranks({"a": [1, 2], "b": [1, 2], "c": [1, 2]}, [True, True], "a")
    assert friedman == 1
    assert {rank.mean for rank in found.values()} == {2.0}
    assert found["b"].p == found["c"].p == 1


@pytest.mark.parametrize(("federations", "methods"), [(2, 12), (3, 6), (5, 25), (10, 6)])
def test_a_false_difference_is_as_rare_as_the_level_says(federations, methods):
    rng = np.random.default_rng(1)
    names = [str(number) for number in range(methods)]
    wrong = 0
    for _ in range(400):
        scores = {name: list(rng.normal(size=federations)) for name in names}
        _, found = ranks(scores, [True] * federations, names[0])
        wrong += any(rank.p is not None and rank.p < 0.05 for rank in found.values())
    assert wrong <= stats.binom.ppf(0.999, 400, 0.05)


@pytest.mark.parametrize("seed", range(5))
def test_holm_is_statsmodels(seed):
    p = np.random.default_rng(seed).uniform(0, 0.1, 7)
    found = holm({str(i): value for i, value in enumerate(p)})
    expected = multipletests(p, method="holm")[1]
    assert [found[str(i)] for i in range(7)] == pytest.approx(list(expected))


@pytest.mark.parametrize("scores", [{"a": [1, 2], "b": [2, 1]}, {"a": [1], "b": [2], "c": [3]}])
def test_too_few_are_refused(scores):
    higher = [True] * len(scores["a"])
    with pytest.raises(ValueError, match="at least 3 methods and 2 federations, got"):
        ranks(scores, higher, "a")
