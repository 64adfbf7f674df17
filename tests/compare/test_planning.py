"""Seeds and clients that a difference takes: whether so many show it, by simulation."""

import numpy as np
import pytest
from scipy.stats import t, ttest_1samp

from engram.compare.differences import Gap, Needed, gaps_of, needed, pairwise

METHODS = 4


def gap_of(mean, seeds, clients, between, within, noise):
    """The gap of two methods' effects of these deviations, each of which has its own."""
    e = 2 * noise**2 / (seeds * clients)
    b, a = 2 * between**2 / seeds + e, 2 * within**2 / clients + e
    return Gap(mean, b, a, seeds, clients, e, b)


def power(rng, mean, seeds, clients, between, within, noise, tries=150):
    """The share of comparisons that show a difference between the first two methods."""
    found = 0
    for _ in range(tries):
        b = between * rng.normal(size=(METHODS, seeds, 1))
        a = within * rng.normal(size=(METHODS, 1, clients))
        scores = a + b + noise * rng.normal(size=(METHODS, seeds, clients))
        scores[0] += mean
        found += pairwise({str(k): list(x) for k, x in enumerate(scores)})["0", "1"].shown
    return found / tries


def ends_of(mean, seeds, clients, between, within, noise):
    """The 10th and 90th percentile of Student's distribution about the mean, by Satterthwaite."""
    e = 2 * noise**2 / (seeds * clients)
    b, a = 2 * between**2 / seeds + e, 2 * within**2 / clients + e
    degrees = (a + b) ** 2 / (b**2 / (seeds - 1) + a**2 / (clients - 1))
    return t.ppf([0.1, 0.9], degrees, mean, (a + b) ** 0.5)


@pytest.mark.parametrize(
    ("mean", "between", "within", "noise"),
    [
        (0.06, 0.03, 0.0, 0.05),  # seeds vary
        (0.05, 0.02, 0.01, 0.1),  # all vary
        (0.035, 0.0, 0.005, 0.08),  # rows of clients vary
    ],
)
def test_so_many_seeds_show_the_smaller_difference_in_80_percent(mean, between, within, noise):
    """A third fewer are too few, and a third more are enough."""
    spread = between, within, noise
    found = needed(gap_of(mean, 8, 20, *spread), METHODS)
    assert not found.more_clients
    assert found.low <= found.high < np.inf
    rng, error = np.random.default_rng(1), 2 * np.sqrt(0.8 * 0.2 / 150)
    small, _ = ends_of(mean, 8, 20, *spread)
    assert power(rng, small, round(1.3 * found.high), 20, *spread) > 0.8 - error
    assert power(rng, small, int(found.high / 1.3), 20, *spread) < 0.8 + error


def test_where_no_number_of_seeds_suffices_so_many_clients_show_it():
    mean, spread = 0.1, (0.01, 0.1, 0.05)
    found = needed(gap_of(mean, 10, 20, *spread), METHODS)
    assert found.more_clients
    assert str(found) == f"about {found.low} to {found.high} clients"
    rng, error = np.random.default_rng(1), 2 * np.sqrt(0.8 * 0.2 / 150)
    small, _ = ends_of(mean, 10, 20, *spread)
    assert power(rng, small, 60, 20, *spread) < 0.5
    assert power(rng, small, 10, round(1.3 * found.high), *spread) > 0.8 - error
    assert power(rng, small, 10, int(found.high / 1.3), *spread) < 0.8 + error


def test_numbers_are_told_where_the_pairs_own_interval_of_90_percent_excludes_zero():
    """Without seeds' variance this is the one of the t-test over clients."""
    values = np.random.default_rng(2).normal(size=20)
    (_, high), mean = ttest_1samp(values, 0.0).confidence_interval(0.9), values.mean()
    for times in (0.99, 1.01):
        scores = {"one": [values + times * (high - mean) - mean] * 3, "other": [np.zeros(20)] * 3}
        gap = gaps_of(scores)["one", "other"]
        assert (needed(gap, 8) is not None) == (times > 1)


def test_nothing_is_told_where_nothing_can_be_estimated():
    assert needed(gap_of(0.1, 3, 20, 0.1, 0.1, 0.1)._replace(seeds=1), METHODS) is None
    assert needed(gap_of(0.0, 3, 20, 0.1, 0.1, 0.1), METHODS) is None
    assert needed(Gap(np.nan, 0.0, 0.0, 0, 0), METHODS) is None


def test_the_parts_of_the_variance_are_those_of_the_model():
    rng, sums = np.random.default_rng(3), np.zeros(3)
    b, a, e = 0.3, 0.5, 0.7
    for _ in range(2000):
        table = a * rng.normal(size=(1, 6)) + b * rng.normal(size=(4, 1))
        scores = {"one": list(table + e * rng.normal(size=(4, 6))), "other": [np.zeros(6)] * 4}
        gap = gaps_of(scores)["one", "other"]
        sums += gap.by_seeds - gap.noise, gap.by_clients - gap.noise, gap.noise
    assert sums / 2000 == pytest.approx([b**2 / 4, a**2 / 6, e**2 / 24], rel=0.05)


def test_numbers_are_told_in_words():
    assert str(Needed(12, 12, 100)) == "about 12 seeds"
    assert str(Needed(12, 40, 100)) == "about 12 to 40 seeds"
    assert str(Needed(12, np.inf, 100)) == "about 12 to more than 100 seeds"
    assert str(Needed(np.inf, np.inf, 400, more_clients=True)) == "more than 400 clients"
