"""Seeds and clients that a difference takes: whether so many show it, by simulation."""

import numpy as np
import pytest

from simulations.differences import Gap, gaps_of, pairwise
from simulations.planning import Needed, needed

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


@pytest.mark.parametrize(
    ("mean", "between", "within", "noise"),
    [
        (0.04, 0.03, 0.0, 0.05),  # seeds vary
        (0.04, 0.02, 0.02, 0.1),  # all vary
        (0.02, 0.0, 0.005, 0.08),  # rows of clients vary
        (0.10, 0.03, 0.02, 0.05),  # few seeds suffice
    ],
)
def test_so_many_seeds_show_it_in_80_percent_to_within_a_factor(mean, between, within, noise):
    """A third fewer are too few, and a third more are enough."""
    spread = between, within, noise
    found = needed(gap_of(mean, 3, 20, *spread), METHODS)
    assert found.clients == 20
    rng, error = np.random.default_rng(1), 2 * np.sqrt(0.8 * 0.2 / 150)
    assert power(rng, mean, round(1.3 * found.seeds), 20, *spread) > 0.8 - error
    fewer = int(found.seeds / 1.3)
    assert fewer < 2 or power(rng, mean, fewer, 20, *spread) < 0.8 + error


def test_where_no_number_of_seeds_suffices_so_many_clients_show_it():
    spread = 0.01, 0.1, 0.05
    found = needed(gap_of(0.05, 3, 20, *spread), METHODS)
    assert found.clients > 20
    assert str(found) == f"about {found.clients} clients"
    rng, error = np.random.default_rng(1), 2 * np.sqrt(0.8 * 0.2 / 150)
    assert power(rng, 0.05, 60, 20, *spread) < 0.5
    assert power(rng, 0.05, found.seeds, round(1.3 * found.clients), *spread) > 0.8 - error
    assert power(rng, 0.05, found.seeds, int(found.clients / 1.3), *spread) < 0.8 + error


def test_a_small_difference_takes_more_than_can_be_told():
    seeds = needed(gap_of(1e-4, 3, 20, 0.1, 0.0, 0.1), METHODS)
    assert str(seeds) == "more than 100 seeds"
    clients = needed(gap_of(1e-4, 3, 20, 0.0, 0.1, 0.1), METHODS)
    assert str(clients) == "more than 400 clients"


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
    assert str(Needed(12, 20, 20)) == "about 12 seeds"
