"""Means, their errors, and groups of rows, by hand."""

import numpy as np
import pytest

from engram.studies.summaries import grouped, mean_and_error


def test_a_mean_and_its_error_by_hand():
    # Deviations of 1, 3, 8 from 4: -3, -1, 4; their variance is 26 / 2.
    mean, error = mean_and_error(np.array([1.0, 3.0, 8.0]))
    assert mean == 4
    assert error == pytest.approx((13 / 3) ** 0.5)
    _, half = mean_and_error(np.array([1.0, 3.0, 8.0]), 1.96)
    assert half == pytest.approx(1.96 * error)
    assert mean_and_error(np.array([3.0])) == (3.0, None)  # of one value


def test_rows_are_grouped_in_the_order_in_which_they_come():
    rows = [{"a": 2, "b": {"c": 1}}, {"a": 1, "b": {}}, {"a": 2, "b": {"c": 1}}]
    groups = grouped(rows, "a", "b")
    assert list(groups) == [(2, (("c", 1),)), (1, ())]
    assert groups[1, ()] == [rows[1]]
    assert len(groups[2, (("c", 1),)]) == 2
