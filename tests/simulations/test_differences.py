"""Differences between methods: what the paired bootstrap says of known ones."""

import numpy as np
import pytest

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


def test_one_seed_gives_the_bootstrap_of_its_clients():
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


@pytest.mark.parametrize("sizes", [[7], [400], [20] * 3, [1] * 10, [130] * 9, [5, 9, 5]])
def test_samples_drawn_together_are_those_drawn_one_by_one(sizes):
    draw = np.random.default_rng(1)
    pairs = [draw.normal(size=size) for size in sizes]
    rng, means = np.random.default_rng(0), []
    for _ in range(2000):
        chosen = (pairs[seed] for seed in rng.integers(len(pairs), size=len(pairs)))
        means.append(np.mean([own[rng.integers(len(own), size=len(own))].mean() for own in chosen]))
    found = paired_difference(pairs, [np.zeros(size) for size in sizes])
    assert (found.low, found.high) == tuple(np.quantile(means, [(1 - 0.95) / 2, (1 + 0.95) / 2]))


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
