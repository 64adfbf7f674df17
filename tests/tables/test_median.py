"""Weighted medians by the properties that define them; trimmed means by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.tables.median import trimmed_mean, weighted_median
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


# --- The trimmed mean ---------------------------------------------------------------------------

LINE = [8.0, 1.0, 100.0, 4.0, 2.0]


def mean(values, proportion):
    return trimmed_mean(np.array(values, dtype=float)[:, None], proportion).item()


def test_trimmed_means_by_hand():
    for values, proportion, expected in [
        (LINE, 0.0, 23.0),
        (LINE, 0.19, 23.0),  # 0.95 of a task is none
        (LINE, 0.2, 14 / 3),  # (2 + 4 + 8) / 3
        (LINE, 0.4, 4.0),
        (LINE, 0.49, 4.0),
        ([8.0, 1.0, 4.0, 2.0], 0.49, 3.0),  # the middle two
        ([5.0], 0.4, 5.0),
        ([1.0, np.nan, 7.0, 100.0, 2.0, 4.0], 0.2, 13 / 3),  # of five: (2 + 4 + 7) / 3
    ]:
        with entry(values, proportion):
            assert mean(values, proportion) == pytest.approx(expected, abs=1e-12)


def test_a_product_that_is_rounded_down_to_just_below_a_number_counts_as_it():
    assert 0.29 * 100 < 29
    values = np.arange(100.0) ** 2
    assert mean(values, 0.29) == pytest.approx(values[29:71].mean())


HONEST = st.lists(st.floats(-9, 9), min_size=8, max_size=16)


@given(HONEST, st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=2), st.randoms())
def test_as_many_as_are_left_out_at_an_end_cannot_drag_it_away(honest, lies, random):
    values = [*honest, *lies]
    random.shuffle(values)
    assert min(honest) - 1e-9 <= mean(values, 0.2) <= max(honest) + 1e-9


def test_trimmed_means_refuse():
    for values, proportion, message in [
        (np.ones((3, 2)), 0.5, r"proportion must be in \[0, 0.5\), got 0.5"),
        (np.ones((3, 2)), -0.1, r"proportion must be in \[0, 0.5\), got -0.1"),
        (np.ones(3), 0.1, r"values.shape must be \(M, d\), got \(3,\)"),
        (np.array([[1.0, np.nan]]), 0.1, r"values must be known to a task, got .*coordinate \[1\]"),
        (np.ones((0, 2)), 0.1, "values must be known to a task"),
    ]:
        with entry(values, proportion), pytest.raises(ValueError, match=message):
            trimmed_mean(values, proportion)
