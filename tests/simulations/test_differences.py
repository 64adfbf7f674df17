"""Differences between methods: what intervals say of known ones, and how often they cover."""

import numpy as np
import pytest
from scipy.stats import t

from engram.metrics import METRICS
from simulations.differences import Difference, in_words, paired_difference


def scores(seeds, clients, spread, shift=0.0):
    rng = np.random.default_rng(1)
    return [rng.normal(0.5, spread, clients) + shift for _ in range(seeds)]


def test_equal_scores_differ_by_nothing():
    found = paired_difference(scores(3, 20, 0.2), scores(3, 20, 0.2))
    assert found == (0, 0, 0)
    assert not found.shown


def test_clients_are_compared_with_themselves():
    """Clients differ by far more than the methods; the difference is that of each client."""
    found = paired_difference(scores(3, 20, 0.3, shift=0.01), scores(3, 20, 0.3))
    assert found == pytest.approx((0.01, 0.01, 0.01))
    assert found.shown


def test_the_interval_of_one_seed_is_over_its_clients():
    """The interval of a mean of n values is about 1.96 standard errors to either side."""
    gaps = np.random.default_rng(2).normal(0.0, 1.0, 400)
    found = paired_difference([gaps], [np.zeros(400)])
    error = gaps.std() / 20
    assert found.mean == pytest.approx(gaps.mean())
    assert found.low == pytest.approx(gaps.mean() - 1.96 * error, abs=0.2 * error)
    assert found.high == pytest.approx(gaps.mean() + 1.96 * error, abs=0.2 * error)


def test_seeds_that_disagree_widen_the_interval():
    zeros = [np.zeros(50)] * 4
    agree = paired_difference([np.full(50, 0.1)] * 4, zeros)
    disagree = paired_difference([np.full(50, shift) for shift in (-0.1, 0.3, -0.1, 0.3)], zeros)
    assert agree.shown
    assert disagree.mean == pytest.approx(agree.mean)
    assert not disagree.shown


def test_clients_without_a_score_are_left_out():
    mine, theirs = np.array([0.9, np.nan, 0.7]), np.array([0.8, 0.1, 0.6])
    assert paired_difference([mine], [theirs]).mean == pytest.approx(0.1)
    with pytest.raises(ValueError, match="no client of a seed was scored"):
        paired_difference([mine, mine * np.nan], [theirs, theirs])


def test_the_interval_of_seeds_is_students():
    gaps = [np.array([0.1, 0.3]), np.array([0.7, 0.5, 0.9]), np.array([0.0, 0.2])]
    means = np.array([0.2, 0.7, 0.1])
    half = t.ppf(0.975, 2) * means.std(ddof=1) / np.sqrt(3)
    found = paired_difference(gaps, [np.zeros(len(each)) for each in gaps])
    assert found == pytest.approx((1 / 3, 1 / 3 - half, 1 / 3 + half))


def test_seeds_that_agree_by_chance_do_not_hide_that_clients_differ():
    gaps = np.array([-0.4, 0.6, -0.2, 0.4])
    found = paired_difference([gaps, gaps, gaps], [np.zeros(4)] * 3)
    error = gaps.std(ddof=1) / np.sqrt(4 * 3)
    assert found.high == pytest.approx(0.1 + t.ppf(0.975, 2) * error)


def test_few_clients_of_one_seed_have_students_interval_and_a_single_one_none():
    two = paired_difference([np.array([0.1, 0.3])], [np.zeros(2)])
    assert two.high == pytest.approx(0.2 + t.ppf(0.975, 1) * 0.1)
    assert paired_difference([np.array([0.1])], [np.zeros(1)]) == (0.1, -np.inf, np.inf)


@pytest.mark.parametrize(
    ("seeds", "clients", "between", "tries"),
    [
        (1, 20, 0.0, 400),
        (2, 20, 1.0, 1500),  # the percentile bootstrap: 0.90
        (3, 20, 0.0, 1500),
        (3, 20, 2.0, 1500),  # 0.89
        (3, 5, 100.0, 1500),  # 0.74
        (5, 20, 4.0, 1500),  # 0.91
        (10, 5, 0.5, 1500),
        (3, 1, 0.0, 1500),
    ],
)
def test_the_interval_covers_the_difference_with_few_seeds(seeds, clients, between, tries):
    """``between`` is the variance of seeds' effects, in units of that of a seed's mean."""
    rng = np.random.default_rng(5)
    zeros, covers = [np.zeros(clients)] * seeds, 0
    for _ in range(tries):
        shifts = np.sqrt(between / clients) * rng.normal(size=(seeds, 1))
        found = paired_difference(list(shifts + rng.normal(size=(seeds, clients))), zeros)
        covers += found.low <= 0 <= found.high
    least = 0.95 if seeds > 1 else 0.94  # the bootstrap-t is no exact one
    assert covers / tries >= least - 3 * np.sqrt(0.95 * 0.05 / tries)


def test_words_name_a_winner_only_where_the_interval_excludes_zero():
    differences = {
        "local": Difference(0.02, 0.01, 0.03),
        "fedavg": Difference(0.005, -0.002, 0.01),
        "ditto": Difference(-0.03, -0.05, -0.01),
    }
    told = in_words("pfedme", differences, METRICS["accuracy"])
    assert told == [
        "pfedme has the best accuracy on validation rows; on test rows, over clients:",
        "  it is better than local by 2.00 points (1.00 to 3.00)",
        "  it is worse than ditto by 3.00 points (1.00 to 5.00)",
        "  no difference is shown from fedavg (-0.20 to 1.00 points)",
    ]
