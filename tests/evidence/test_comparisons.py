"""Rates of a comparison's statistics, of few draws."""

import numpy as np
import pytest

from engram.compare.differences import pairwise
from tests.evidence import comparisons


def error_of(rate, draws):
    return 2 * np.sqrt(rate * (1 - rate) / draws)


def test_pairs_are_told_apart_at_once_as_one_by_one():
    between = np.array([1.0, 0.1, 0.5, 2.0])
    scores = comparisons.crossed(np.random.default_rng(0), between, (20, 4, 6), within=0.1)
    scores += np.arange(4)[:, None, None]
    found = [pairwise({str(k): list(own) for k, own in enumerate(each)}) for each in scores]
    told = [[d.shown for (one, other), d in each.items() if one < other] for each in found]
    assert comparisons.shown(scores).tolist() == told
    assert 0 < np.mean(told) < 1


@pytest.mark.parametrize("noisy", [5.0, 14.0])
def test_one_noisy_method_leaves_the_others_their_power(noisy):
    """At least nine tenths of that without it, on the same draws of the others."""
    alone = comparisons.power([], 400, methods=11)
    assert alone > 0.5
    assert comparisons.power([noisy], 400) >= 0.9 * alone - error_of(alone, 400)


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("pattern", ["2 of 12 vary", "2 of 12 by 14 times"])
def test_methods_that_are_alike_are_seldom_told_apart(pattern, seeds):
    found = comparisons.family_wise(comparisons.PATTERNS[pattern], seeds, 400)
    assert found <= 0.05 + error_of(0.05, 400)


@pytest.mark.parametrize("spread", [(1.0, 0.0, 0.3), (0.0, 1.0, 0.3)])
def test_one_pair_in_ten_without_a_difference_is_told_a_number(spread):
    assert comparisons.planned(5, *spread, draws=40) <= 0.1 + error_of(0.1, 3 * 40)


def test_transformed_statistics_exclude_zero_as_students_does_where_nothing_is_skewed():
    rng, values = np.random.default_rng(0), np.linspace(-1, 1, 40)
    for mean, excluded in ((0.1, False), (0.5, True)):
        found = comparisons.excluded(values + mean, 0.05, rng)
        assert found == dict.fromkeys(comparisons.RULES, excluded)


def test_skewed_differences_and_rare_losses_break_the_levels():
    assert comparisons.skewed_error(4, 12, 200) > 0.1
    assert comparisons.rows_coverage(0.1, 10, 100) < 0.85 < comparisons.rows_coverage(0.5, 50, 100)
