"""Scatter of a column over tasks: closed forms, outliers, and the test's level."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal

from engram.tables.heterogeneity import estimate_heterogeneity, restricted


def test_the_p_value_is_that_of_cochrans_q():
    gaps = np.random.default_rng(0).normal(size=(10, 4000))
    p_value = estimate_heterogeneity(gaps, np.ones((10, 4000))).p_value
    assert np.mean(p_value < 0.05) == pytest.approx(0.05, abs=0.012)
    few = estimate_heterogeneity(gaps * 1.3, np.ones((10, 4000)), alike=0.05)
    assert (few.variance[few.p_value > 0.05] == 0).all()
    assert (few.variance[few.p_value <= 0.05] > 0).all()
    assert (estimate_heterogeneity(gaps * 9, np.ones((10, 4000)), alike=0.0).variance == 0).all()


def test_a_task_that_is_far_away_is_apart_and_moves_nothing():
    rng = np.random.default_rng(0)
    gaps = rng.normal(size=(20, 50))
    gaps[3] = 1e6
    found = estimate_heterogeneity(gaps, np.ones((20, 50)), reach=4.0)
    assert found.apart[3].all()
    assert found.apart.sum() < 55
    assert np.abs(found.center).max() < 1
    assert np.median(found.variance) < 0.3


def test_the_variance_of_what_is_cut_off_is_not_underestimated():
    rng = np.random.default_rng(0)
    gaps = 2 * rng.normal(size=(4000, 1))
    for reach in (2.0, 3.0, np.inf):
        found = estimate_heterogeneity(gaps, np.ones((4000, 1)), reach=reach)
        assert found.variance[0] == pytest.approx(3.0, abs=0.3)


def test_tasks_that_say_nothing_of_a_column_do_not_matter():
    rng = np.random.default_rng(0)
    gaps, variances = rng.normal(size=(9, 3)), np.ones((9, 3))
    more = np.vstack([gaps, np.full((5, 3), 7.0)])
    unknown = np.vstack([variances, np.full((5, 3), np.inf)])
    for reach in (2.0, np.inf):
        one, other = (
            estimate_heterogeneity(gaps, variances, reach=reach),
            estimate_heterogeneity(more, unknown, reach=reach),
        )
        np.testing.assert_allclose(other.center, one.center)
        np.testing.assert_allclose(other.variance, one.variance)
        np.testing.assert_allclose(other.p_value, one.p_value)
        assert not other.apart[9:].any()


def unequal(tasks=12, columns=40, seed=0):
    """Gaps that scatter by 1 around 5, with variances that differ a hundredfold."""
    rng = np.random.default_rng(seed)
    variances = 10.0 ** rng.uniform(-1, 1, (tasks, columns))
    return 5 + rng.normal(size=(tasks, columns)) * np.sqrt(1 + variances), variances


def contrasts(gaps, variances, t):
    """The log-likelihood of differences to the first gap, which do not depend on the center."""
    apart = np.hstack([-np.ones((len(gaps) - 1, 1)), np.eye(len(gaps) - 1)])
    covariance = apart * (variances + t) @ apart.T
    return multivariate_normal(cov=covariance).logpdf(apart @ gaps)


@pytest.mark.parametrize("scattered", [False, True])
def test_it_maximizes_the_likelihood_of_contrasts(scattered):
    """And half the logarithm of t, where columns are known to scatter."""
    gaps, variances = unequal()
    found = restricted(gaps, variances, scattered=scattered)
    assert (found >= restricted(gaps, variances)).all()
    for k in range(8):

        def minus(t, own=(gaps[:, k], variances[:, k])):
            return -contrasts(*own, t) - (np.log(t) / 2 if scattered else 0)

        most = minimize_scalar(minus, bounds=(0, 50), method="bounded")
        assert found[k] == pytest.approx(most.x, rel=1e-3, abs=1e-4)
    moved = restricted(1e3 * gaps[::-1] - 70, 1e6 * variances[::-1], scattered=scattered)
    np.testing.assert_allclose(moved, 1e6 * found, rtol=1e-8)  # units, origin and order


def test_where_variances_are_equal_it_is_that_of_the_analysis_of_variance_or_0():
    gaps = np.random.default_rng(0).normal(size=(7, 500))
    excess = gaps.var(axis=0, ddof=1) - 1
    assert (excess < 0).sum() > 200
    found = restricted(gaps, np.ones((7, 500)))
    np.testing.assert_allclose(found, np.maximum(excess, 0), rtol=1e-8)
    # With the pull: S / (1 + t)^2 - (m - 1) / (1 + t) + 1 / t = 0, S = (m - 1) (1 + excess), so
    # that (m - 2) t^2 - ((m - 1) excess + 2) t - 1 = 0.
    half = (6 * excess + 2) / (2 * 5)
    pulled = restricted(gaps, np.ones((7, 500)), scattered=True)
    np.testing.assert_allclose(pulled, half + np.sqrt(half**2 + 1 / 5), rtol=1e-8)


def test_columns_that_scatter_are_never_alike():
    gaps = 0.1 * np.random.default_rng(0).normal(size=(9, 4))
    scattered = np.array([False, False, False, True])
    for level in (0.0, 0.05, 1.0):
        found = estimate_heterogeneity(gaps, np.ones((9, 4)), alike=level, scattered=scattered)
        np.testing.assert_array_equal(found.variance > 0, scattered)
    # Two tasks do not show how much.
    assert estimate_heterogeneity(gaps[:2], np.ones((2, 4)), scattered=scattered).variance[3] == 0
