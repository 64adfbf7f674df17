"""Properties that define a weighted median, checked on arbitrary inputs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.tables.median import weighted_median
from tests.samples import entry

# Small integers: every sum below is exact in float64, so equalities can be too.
NUMBERS = st.integers(-20, 20)
TASKS = st.integers(1, 8).flatmap(
    lambda m: st.tuples(
        st.lists(NUMBERS, min_size=m, max_size=m),
        st.lists(st.integers(0, 9), min_size=m, max_size=m).filter(any),
    )
)


def median(values, weights):
    column = np.array(values, dtype=float)[:, None]
    return weighted_median(column, np.array(weights, dtype=float)).item()


def cost(z, values, weights):
    return sum(w * abs(z - v) for v, w in zip(values, weights, strict=True))


@given(TASKS)
def test_is_the_midpoint_of_all_minimizers(tasks):
    best = min(cost(v, *tasks) for v in tasks[0])
    ends = [v for v, w in zip(*tasks, strict=True) if w > 0 and cost(v, *tasks) == best]
    assert median(*tasks) == (min(ends) + max(ends)) / 2


@given(TASKS, st.floats(1e-6, 1e6))
def test_scaling_weights_changes_nothing(tasks, scale):
    values, weights = tasks
    assert median(values, [scale * w for w in weights]) == median(*tasks)


@given(TASKS, st.lists(st.floats(-1e9, 1e9), min_size=8, max_size=8))
def test_whoever_has_less_than_half_of_the_weight_cannot_leave_the_others_range(tasks, sent):
    values, weights = tasks
    honest = sum(weights)
    # Whatever the newcomers send, with one less weight than the others.
    liars = [1] * min(len(sent), honest - 1)
    found = median([*values, *sent[: len(liars)]], [*weights, *liars])
    weighty = [v for v, w in zip(values, weights, strict=True) if w > 0]
    assert min(weighty) <= found <= max(weighty)


def test_a_tie_is_a_tie_whatever_the_rounding():
    # 0.1 + 0.2 is above half of 0.6 in float64, 1/3 + 1/6 is not: both are ties.
    assert median([3, 1, 2], [0.3, 0.1, 0.2]) == 2.5
    assert median([3, 1, 2], [1 / 2, 1 / 3, 1 / 6]) == 2.5


def test_coordinates_are_independent_and_may_have_weights_of_their_own():
    values = np.array([[1.0, 30.0], [2.0, 10.0], [3.0, 20.0]])
    assert weighted_median(values, np.ones(3)).tolist() == [2, 20]
    weights = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    values[0, 1] = np.nan  # without weight a value may be anything
    assert weighted_median(values, weights).tolist() == [2, 10]


def test_refuses_weights_that_are_none():
    for weights in [[0.0, 0.0], [1.0, -1.0], [1.0, np.nan], [1.0, np.inf], [1.0]]:
        with entry(weights), pytest.raises(ValueError, match="weights"):
            weighted_median(np.ones((2, 1)), np.array(weights))
