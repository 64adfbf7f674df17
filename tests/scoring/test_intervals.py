"""Intervals of means and of crossed differences, against scipy and by hand."""

import numpy as np
import pytest
from scipy import stats

from engram.scoring.intervals import (
    crossed,
    deviation,
    error_of,
    mean_and_error,
    quantile,
    student,
    variances_of,
)


def test_an_interval_of_a_mean_is_the_t_tests():
    values = np.random.default_rng(1).normal(0.4, 1, (7, 3))
    means, errors = mean_and_error(values)
    _, halves = mean_and_error(values, 1.96)
    for column, mean, error, half in zip(values.T, means, errors, halves, strict=True):
        test = stats.ttest_1samp(column, 0.0)
        ends = test.confidence_interval(0.95)
        assert student(column) == pytest.approx((column.mean(), *ends))
        assert student(column).shown == (test.pvalue < 0.05)
        assert (mean, error) == pytest.approx((column.mean(), stats.sem(column)))
        assert half == pytest.approx(1.96 * error)
        assert deviation(column) == pytest.approx(error * 7**0.5)


def test_one_value_has_no_interval():
    assert student(np.array([3.0])) == crossed(np.array([[3.0]]), 0.0) == (3, -np.inf, np.inf)
    assert mean_and_error(np.array([3.0])) == (3.0, None)
    assert deviation([3.0]) is None


def test_a_quantile_of_infinite_freedom_is_the_normal_distributions():
    found = quantile(0.9, np.array([4.5, np.inf]))
    assert found == pytest.approx([stats.t.ppf(0.9, 4.5), stats.norm.ppf(0.9)])


def test_a_crossed_interval_by_hand():
    # Gaps 1, 2, 3 in three splits of one task: s^2 = 1; with ratio 1/3 the variance is 2/3.
    found = crossed(np.array([[1.0], [2.0], [3.0]]), 1 / 3)
    assert found.mean == pytest.approx(2)
    assert found.high - found.mean == pytest.approx(4.302653 * (2 / 3) ** 0.5, rel=1e-6)
    # Two tasks and two splits, which differ by nothing else: 0.5 / 2 of the tasks.
    found = crossed(np.array([[1.0, 2.0], [1.0, 2.0]]), 1.0)
    assert found.mean - found.low == pytest.approx(12.7062 * 0.5, rel=1e-5)


def test_parts_of_the_variance_are_never_too_small_together():
    """Their mean is the variance of the mean, and that of one cell of the table more."""
    rng, seeds, clients = np.random.default_rng(2), 4, 5
    a, b, e = 0.7, 0.4, 1.1
    found = []
    for _ in range(4000):
        table = a * rng.normal(size=clients) + b * rng.normal(size=(seeds, 1))
        found.append(sum(variances_of(table + e * rng.normal(size=(seeds, clients)))))
    exact = a**2 / clients + b**2 / seeds + e**2 / (seeds * clients)
    assert np.mean(found) == pytest.approx(exact + e**2 / (seeds * clients), rel=0.03)


def test_degrees_of_freedom_are_satterthwaites():
    """Degrees of freedom of two means are Welch's, as in the t-test of two samples."""
    rng = np.random.default_rng(10)
    one, other = rng.normal(size=5), 3 * rng.normal(size=9)
    error, degrees = error_of(one.var(ddof=1) / 5, other.var(ddof=1) / 9, 5, 9)
    test = stats.ttest_ind(one, other, equal_var=False)
    assert degrees == pytest.approx(test.df)
    assert (one.mean() - other.mean()) / error == pytest.approx(test.statistic)
    assert error_of(0.0, 0.0, 3, 4) == (0.0, 1.0)
