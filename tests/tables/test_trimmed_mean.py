"""The trimmed mean: by hand, against scipy's, and against arbitrary minorities."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.tables.median import trimmed_mean
from tests.samples import entry

LINE = [8.0, 1.0, 100.0, 4.0, 2.0]


def mean(values, proportion):
    return trimmed_mean(np.array(values, dtype=float)[:, None], proportion).item()


def test_by_hand():
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


def test_each_coordinate_is_trimmed_apart_and_of_those_that_know_it():
    values = np.array([[1.0, np.nan], [2.0, 60.0], [30.0, 7.0], [4.0, 8.0], [3.0, 9.0]])
    # Of five, one at either end; of four, none: 0.2 * 4 is less than one.
    assert trimmed_mean(values, 0.2).tolist() == [3.0, 21.0]


def test_a_product_that_is_rounded_down_to_just_below_a_number_counts_as_it():
    assert 0.29 * 100 < 29
    values = np.arange(100.0) ** 2
    assert mean(values, 0.29) == pytest.approx(values[29:71].mean())


NUMBERS = st.lists(st.floats(-9, 9), min_size=8, max_size=16)


@given(NUMBERS, st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=2), st.randoms())
def test_as_many_as_are_left_out_at_an_end_cannot_drag_it_away(honest, lies, random):
    values = [*honest, *lies]
    random.shuffle(values)
    assert min(honest) - 1e-9 <= mean(values, 0.2) <= max(honest) + 1e-9


def test_refuses():
    for values, proportion, message in [
        (np.ones((3, 2)), 0.5, r"proportion must be in \[0, 0.5\), got 0.5"),
        (np.ones((3, 2)), -0.1, r"proportion must be in \[0, 0.5\), got -0.1"),
        (np.ones(3), 0.1, r"values.shape must be \(M, d\), got \(3,\)"),
        (np.array([[1.0, np.nan]]), 0.1, r"values must be known to a task, got .*coordinate \[1\]"),
        (np.ones((0, 2)), 0.1, "values must be known to a task"),
    ]:
        with entry(values, proportion), pytest.raises(ValueError, match=message):
            trimmed_mean(values, proportion)
