"""The linear model that learns a stream: its units, and its first rows by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.online import linear, mixture
from engram.online.linear import coefficients, learned, predictions, started
from engram.online.losses import LOGISTIC, SQUARED, LinearTask, RunningMoments
from tests.online.streams import labels, rows


@given(st.integers(1, 12), st.integers(0, 99))
def test_moments_are_those_of_all_rows(n, seed):
    rng = np.random.default_rng(seed)
    x, weights = rng.normal(size=(n, 2)) * [1, 1e5] + [1e3, 0], rng.random(n) + 0.1
    moments = RunningMoments(0.0, np.zeros(2), np.zeros(2))
    for row, weight in zip(x, weights, strict=True):
        moments = moments.including(row, weight)
    mean = np.average(x, axis=0, weights=weights)
    np.testing.assert_allclose(moments.mean, mean, rtol=1e-9, atol=1e-9)
    deviation = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=weights))
    expected = deviation if n > 1 else np.ones(2)  # one row does not vary
    np.testing.assert_allclose(moments.scale, expected, rtol=1e-6)


def test_a_constant_column_has_scale_1_whatever_weights_are():
    moments = RunningMoments(0.0, np.zeros(1), np.zeros(1))
    for weight in (0.3, 7.0, 1e-3, 0.1):
        moments = moments.including(np.array([0.1]), weight)
    assert moments.scale.tolist() == [1.0]


def test_the_first_rows_of_a_regression_by_hand():
    # Row 1: the mean is the target, columns do not vary, z = (0, 1), p = 0: no gradient at all.
    # Row 2: columns (2, 6) and targets (10, 14) become -1 and 1; W is still 0; the slope is
    # 2 (0 - 1) in both of z = (1, 1): coefficients go up, equally.
    task = LinearTask(SQUARED, outputs=1, standardized=True, radius=3.0, full_matrix=True)
    one = learned(task, started(task, 1), np.array([[2.0]]), np.array([[10.0]]), np.ones(1))
    assert coefficients(task, one).tolist() == [[0.0, 0.0]]
    assert predictions(task, one, np.array([[2.0], [99.0]])).tolist() == [[10.0], [10.0]]
    two = learned(task, one, np.array([[6.0]]), np.array([[14.0]]), np.ones(1))
    ((coefficient, intercept),) = coefficients(task, two)
    assert 0 < coefficient == pytest.approx(intercept, rel=1e-12)
    at = predictions(task, two, np.array([[4.0], [6.0]]))[:, 0]  # z = 0 and 1; sd's are 2
    np.testing.assert_allclose(
        at, [12 + 2 * intercept, 12 + 2 * (intercept + coefficient)], rtol=1e-12
    )


@pytest.mark.parametrize("rules", [linear, mixture], ids=["universal", "mixture"])
@pytest.mark.parametrize("full", [True, False])
def test_a_column_that_comes_late_was_0_before(rules, full):
    task = LinearTask(LOGISTIC, outputs=2, standardized=False, radius=4.0, full_matrix=full)
    x, _ = rows(60)
    signs = np.where(labels(x) == "yes", 1.0, -1.0)
    z = (x - [40, 5e4, 1.7]) / [10, 1e4, 0.1]
    targets, none = np.c_[signs, -signs], np.zeros((60, 1))
    narrow = rules.learned(task, rules.started(task, 2), z[:, :2], targets, np.ones(60))
    later = np.c_[z[:, :2], none]
    wide = rules.learned(task, rules.started(task, 3), later, targets, np.ones(60))
    widen = rules.widened(task, narrow, 3)
    for a, b in zip(widen.columns, wide.columns, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    before, after = rules.coefficients(task, narrow), rules.coefficients(task, widen)
    assert after[:, 2].tolist() == [0, 0] == rules.coefficients(task, wide)[:, 2].tolist()
    np.testing.assert_allclose(after[:, [0, 1, 3]], before, rtol=1e-12)
    found = rules.predictions(task, widen, later)
    np.testing.assert_allclose(found, rules.predictions(task, narrow, z[:, :2]), rtol=1e-12)
    more = rules.learned(task, widen, z, targets, np.ones(60))
    assert (rules.coefficients(task, more)[:, 2] != 0).all()
