"""The share of clients that are served worse than by their own training."""

import numpy as np
import pytest
from statsmodels.stats.proportion import proportion_confint

from simulations.harm import share_worse

NAN = np.nan


def test_the_share_counts_clients_whose_score_is_lower_and_ties_are_no_harm():
    found = share_worse([np.array([0.5, 0.7, 0.9, 0.9])], [np.array([0.6, 0.7, 0.8, 0.8])], 1)
    assert found.share == 0.25
    assert share_worse([np.array([0.5, 0.7])], [np.array([0.6, 0.7])], -1).share == 0.0


@pytest.mark.parametrize("worse", [0, 3, 10])
def test_the_interval_of_one_seed_is_wilsons(worse):
    """The unbiased variance of a share of n clients is that of n - 1 independent ones."""
    scores = [np.arange(10) < 10 - worse]
    found = share_worse([each.astype(float) for each in scores], [np.ones(10)], 1)
    count = 9 if 0 < worse < 10 else 10
    limits = proportion_confint(found.share * count, count, method="wilson")
    assert found[1:3] == pytest.approx(limits, abs=1e-12)


def test_the_same_clients_again_make_the_interval_no_narrower():
    mine, base = np.array([1.0, 0.0, 1.0, 1.0, 0.0, 1.0]), np.full(6, 0.5)
    once, again = share_worse([mine], [base], 1), share_worse([mine] * 5, [base] * 5, 1)
    assert again == pytest.approx(once)


def test_seeds_that_disagree_widen_the_interval():
    base = np.full(20, 0.5)
    alike = [np.where(np.arange(20) % 2, 1.0, 0.0)] * 4
    apart = [np.zeros(20), np.ones(20), np.zeros(20), np.ones(20)]
    one, other = share_worse(alike, [base] * 4, 1), share_worse(apart, [base] * 4, 1)
    assert one.share == other.share == 0.5
    assert other.high - other.low > one.high - one.low


def test_clients_without_both_scores_are_not_counted():
    found = share_worse([np.array([0.1, NAN, 0.9])], [np.array([0.5, 0.5, NAN])], 1)
    assert (found.share, found.clients) == (1.0, 1)
    assert share_worse([np.array([NAN])], [np.array([0.5])], 1) is None
