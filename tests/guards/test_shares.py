"""Bounded weights: the share that is promised, and what does not bear on them."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engram.guards.weight_limit import bounded, weight_limit
from tests.samples import entry

WEIGHTS = st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=30).map(np.array)
MULTIPLES = st.sampled_from([1.0, 1.5, 2.0, 5.0, 100.0])


def test_by_hand():
    for weights, limit in [
        ([7], 21),
        ([4, 1000], 12),  # of two, three times the smaller
        ([4, 10, 1000], 30),
        ([10, 4, 1000, 20], 30),  # of four, three times the second
        ([0, 0, 10, 4, 1000], 30),  # who has no weight is no client
        ([0, 0], np.inf),
    ]:
        with entry(weights, limit):
            assert weight_limit(weights, 3) == limit


def test_each_column_apart():
    weights = np.array([[1.0, 0.0, 0.0], [2.0, 8.0, 0.0], [9.0, 3.0, 0.0]])
    assert weight_limit(weights, 2).tolist() == [4.0, 6.0, np.inf]


@given(WEIGHTS, MULTIPLES, st.data())
def test_shares_of_a_minority_are_bounded(honest, multiple, data):
    liars = data.draw(st.integers(1, max(1, len(honest) - 1)))
    claims = data.draw(st.lists(st.integers(1, 2**31 - 1), min_size=liars, max_size=liars))
    weights = np.append(honest, claims)
    n, k = len(weights), liars
    assume(k <= n // 2)
    found = bounded(weights, multiple)
    bound = k * multiple / (k * multiple + n // 2 + 1 - k)
    assert found[len(honest) :].sum() / found.sum() <= bound * (1 + 1e-12)
    assert weight_limit(weights, multiple) <= multiple * honest.max()


def test_the_bound_is_attained():
    # One of six: of the others, two weigh nothing to speak of, and n // 2 = 3 the median.
    weights = np.array([1e-9, 1e-9, 10, 10, 10, 1e9])
    found = bounded(weights, 5)
    assert found[-1] / found.sum() == pytest.approx(5 / (5 + 3))
    # And where the others are alike: c / (c + n - 1).
    found = bounded(np.array([10.0] * 19 + [2**31 - 1]), 5)
    assert found[-1] / found.sum() == pytest.approx(5 / 24)


@given(WEIGHTS, MULTIPLES, st.randoms())
def test_the_order_of_clients_is_immaterial(weights, multiple, random):
    order = random.sample(range(len(weights)), len(weights))
    found = bounded(weights, multiple)
    assert np.array_equal(bounded(weights[order], multiple), found[order])


@given(WEIGHTS, MULTIPLES, st.sampled_from([0.25, 8.0, 2.0**-40]))
def test_the_unit_of_weights_is_immaterial(weights, multiple, unit):  # powers of 2: no rounding
    assert np.array_equal(bounded(weights * unit, multiple), bounded(weights, multiple) * unit)


@given(WEIGHTS, MULTIPLES)
def test_bounding_twice_is_bounding_once(weights, multiple):
    once = bounded(weights, multiple)
    assert np.array_equal(bounded(once, multiple), once)


@given(WEIGHTS, MULTIPLES)
def test_who_is_within_the_limit_is_left_as_is_and_nobody_gains(weights, multiple):
    found, limit = bounded(weights, multiple), weight_limit(weights, multiple)
    assert (found <= weights).all()
    assert np.array_equal(found[weights <= limit], weights[weights <= limit])
    assert (found > 0).all()
    assert np.array_equal(bounded(weights, np.inf), weights)


def test_refuses_a_multiple_below_one():
    with pytest.raises(ValueError, match=r"max-weight must be at least 1, got 0\.5"):
        weight_limit([1, 2], 0.5)


def test_losses_among_which_some_are_zero_or_rounded_below_it():
    assert bounded([1.0, 2.0, 3e38], 5).tolist() == [1, 2, 10]
    assert bounded([0.0, 0.0, 3.0, 4.0, 99.0], 5).tolist() == [0, 0, 3, 4, 20]
    assert bounded([0.0, -1e-9, 3.0], 5).tolist() == [0, -1e-9, 3]
