"""Scatter of a column over tasks: closed forms, outliers, and the test's level."""

import numpy as np
import pytest

from engram.molar.heterogeneity import spread


def test_with_equal_variances_it_is_the_sample_variance_less_that_of_the_noise():
    gaps = np.array([[0.0], [3.0], [1.0], [-2.0], [8.0]])
    found = spread(gaps, np.full((5, 1), 2.0))
    assert found.center[0] == pytest.approx(2.0)
    assert found.variance[0] == pytest.approx(gaps.var(ddof=1) - 2)
    assert not found.apart.any()


def test_tasks_that_scatter_less_than_their_noise_are_alike():
    gaps, variances = np.array([[0.0], [1.0], [2.0]]), np.array([[1.0], [2.0], [4.0]])
    found = spread(gaps, variances)
    assert found.variance[0] == 0
    assert found.center[0] == pytest.approx((0 + 1 / 2 + 2 / 4) / (1 + 1 / 2 + 1 / 4))


def test_the_p_value_is_that_of_cochrans_q():
    gaps = np.random.default_rng(0).normal(size=(10, 4000))
    p_value = spread(gaps, np.ones((10, 4000))).p_value
    assert np.mean(p_value < 0.05) == pytest.approx(0.05, abs=0.012)
    few = spread(gaps * 1.3, np.ones((10, 4000)), alike=0.05)
    assert (few.variance[few.p_value > 0.05] == 0).all()
    assert (few.variance[few.p_value <= 0.05] > 0).all()
    assert (spread(gaps * 9, np.ones((10, 4000)), alike=0.0).variance == 0).all()


def test_a_task_that_is_far_away_is_apart_and_moves_nothing():
    rng = np.random.default_rng(0)
    gaps = rng.normal(size=(20, 50))
    gaps[3] = 1e6
    found = spread(gaps, np.ones((20, 50)), reach=4.0)
    assert found.apart[3].all()
    assert found.apart.sum() < 55
    assert np.abs(found.center).max() < 1
    assert np.median(found.variance) < 0.3


def test_the_variance_of_what_is_cut_off_is_not_underestimated():
    rng = np.random.default_rng(0)
    gaps = 2 * rng.normal(size=(4000, 1))
    for reach in (2.0, 3.0, np.inf):
        found = spread(gaps, np.ones((4000, 1)), reach=reach)
        assert found.variance[0] == pytest.approx(3.0, abs=0.3)


def test_tasks_that_say_nothing_of_a_column_do_not_matter():
    rng = np.random.default_rng(0)
    gaps, variances = rng.normal(size=(9, 3)), np.ones((9, 3))
    more = np.vstack([gaps, np.full((5, 3), 7.0)])
    unknown = np.vstack([variances, np.full((5, 3), np.inf)])
    for reach in (2.0, np.inf):
        one, other = spread(gaps, variances, reach=reach), spread(more, unknown, reach=reach)
        np.testing.assert_allclose(other.center, one.center)
        np.testing.assert_allclose(other.variance, one.variance)
        np.testing.assert_allclose(other.p_value, one.p_value)
        assert not other.apart[9:].any()


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="reach must be above 0, got 0"):
        spread(np.zeros((3, 1)), np.ones((3, 1)), reach=0)
    with pytest.raises(ValueError, match=r"alike must be in \[0, 1\], got"):
        spread(np.zeros((3, 1)), np.ones((3, 1)), alike=2)
