"""The share of clients that are served worse than by their own training."""

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import t
from statsmodels.stats.proportion import proportion_confint

from engram.compare.differences import share_worse
from tests.evidence.comparisons import worse_coverage

NAN = np.nan


def test_the_share_counts_clients_whose_score_is_lower_and_ties_are_no_harm():
    found = share_worse([np.array([0.5, 0.7, 0.9, 0.9])], [np.array([0.6, 0.7, 0.8, 0.8])], 1)
    assert found.mean == 0.25
    assert share_worse([np.array([0.5, 0.7])], [np.array([0.6, 0.7])], -1).mean == 0.0


def limits(share, count, quantile):
    """The shares that are ``quantile`` of their own standard errors from the observed one."""

    def away(p):
        return (share - p) ** 2 - quantile**2 * p * (1 - p) / count

    low = brentq(away, 0.0, min(share, 1 - 1e-12)) if share > 0 else 0.0
    return low, brentq(away, max(share, 1e-12), 1.0) if share < 1 else 1.0


def test_the_interval_is_wilsons_with_students_quantile_of_satterthwaites_degrees():
    """Three seeds that agree on ten clients, and two pseudo-seeds of half the largest variance."""
    for worse in (0, 3, 10):
        scores = np.tile((np.arange(10) >= worse).astype(float), (3, 1))
        found = share_worse(list(scores), [np.ones(10)] * 3, 1)
        share, smooth = worse / 10, (worse + 1) / 12
        by_seeds = (0 + 2 * smooth * (1 - smooth) / 2) / 4 / 3  # five seeds' mean square, of 3
        by_clients = scores[0].var(ddof=1) / 10
        variance = by_seeds + by_clients
        degrees = variance**2 / (by_seeds**2 / 4 + by_clients**2 / 9)
        cells = (3 * worse + 1) / 32
        count = min(cells * (1 - cells) / variance, 10)
        assert found.mean == share
        assert found[1:3] == pytest.approx(limits(share, count, t.ppf(0.975, degrees)), abs=1e-9)


def test_the_same_clients_again_are_no_more_clients():
    mine, base = np.array([1.0, 0.0, 1.0, 1.0, 0.0, 1.0]), np.full(6, 0.5)
    found = share_worse([mine] * 100, [base] * 100, 1)
    low, high = proportion_confint(2, 6, method="wilson")
    assert found.low < low < high < found.high


def test_fewer_than_three_seeds_have_a_share_without_an_interval():
    for seeds in (1, 2):
        found = share_worse([np.array([0.5, 0.7])] * seeds, [np.array([0.6, 0.7])] * seeds, 1)
        assert found == (0.5, -np.inf, np.inf)


def test_the_interval_covers_where_seeds_vary_twice_as_much_as_clients():
    for share, seeds, least in [(0.1, 3, 0.9), (0.5, 3, 0.9), (0.1, 5, 0.93), (0.5, 5, 0.93)]:
        found, _ = worse_coverage(share, seeds, 20, between=2.0, noise=0.5, draws=200)
        assert found >= least - 2 * np.sqrt(0.05 * 0.95 / 200), (share, seeds)


def test_seeds_that_disagree_widen_the_interval():
    base = np.full(20, 0.5)
    alike = [np.where(np.arange(20) % 2, 1.0, 0.0)] * 4
    apart = [np.zeros(20), np.ones(20), np.zeros(20), np.ones(20)]
    one, other = share_worse(alike, [base] * 4, 1), share_worse(apart, [base] * 4, 1)
    assert one.mean == other.mean == 0.5
    assert other.high - other.low > one.high - one.low


def test_clients_without_both_scores_are_not_counted():
    found = share_worse([np.array([0.1, NAN, 0.9])], [np.array([0.5, 0.5, NAN])], 1)
    assert found.mean == 1.0
    assert share_worse([np.array([NAN])], [np.array([0.5])], 1) is None
