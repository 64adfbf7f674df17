"""Adaptive MOLAR: its limits, tasks that differ, and tasks too small to be fitted alone."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from engram.tables.adaptive import adapt
from engram.tables.adaptive_models import AdaptiveClassifier, AdaptiveRegressor
from engram.tables.site import Rows
from tests.tables.countries import linear
from tests.tables.simulated import linear_rows


def simulated(coefs, n, seed=0, sigma=1.0):
    rng = np.random.default_rng(seed)
    return [linear_rows(rng, beta, n, sigma).with_ones() for beta in coefs]


def test_where_all_columns_are_alike_it_is_pooling_with_an_intercept_for_each_task():
    tasks = simulated(np.tile([1.0, -2.0, 0.5], (6, 1)), 400)
    tasks = [rows._replace(y=rows.y + 100 * m) for m, rows in enumerate(tasks)]
    found = adapt(tasks, family="linear", alike=0.0)
    x = np.vstack([rows.x[:, :3] for rows in tasks])
    design = np.hstack([x, np.kron(np.eye(6), np.ones((400, 1)))])
    expected = np.linalg.lstsq(design, np.concatenate([r.y for r in tasks]))[0]
    np.testing.assert_allclose(found.coefs[:, :3], np.tile(expected[:3], (6, 1)), atol=5e-3)
    np.testing.assert_allclose(found.coefs[:, 3], expected[3:], atol=0.02)


def test_balanced_random_intercepts_are_shrunk_by_their_share_of_variance():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(30, 5)) + 2 * rng.normal(size=(30, 1)) + 7
    found = adapt([Rows(np.ones((5, 1)), own) for own in y], family="linear")
    means, within = y.mean(axis=1), y.var(axis=1, ddof=1).mean()
    between = means.var(ddof=1) - within / 5
    assert found.center[0] == pytest.approx(means.mean(), abs=0.05)
    assert found.heterogeneity.variance[0] == pytest.approx(between, rel=0.05)
    expected = means.mean() + (means - means.mean()) * between / (between + within / 5)
    np.testing.assert_allclose(found.coefs[:, 0], expected, atol=0.15)  # noise is moderated


def test_pooled_classes_are_the_library_s_logistic_regression():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2))
    y = (rng.random(400) < 1 / (1 + np.exp(-x @ [1.0, -1.0]))).astype(float)
    tasks = [Rows(x[i::8], y[i::8]) for i in range(8)]
    found = adapt(tasks, family="logistic", alike=0.0, intercept=False)
    expected = LogisticRegression(C=np.inf, fit_intercept=False).fit(x, y).coef_[0]
    np.testing.assert_allclose(found.coefs, np.tile(expected, (8, 1)), atol=2e-3)


def test_intercepts_scatter_though_rare_classes_do_not_show_it():
    """Forty tasks of 20 rows with a case or two: Cochran's Q cannot tell their rates apart."""
    rng = np.random.default_rng(0)
    odds = -3.5 + rng.normal(size=(40, 1))
    y = (rng.random((40, 20)) < 1 / (1 + np.exp(-odds))).astype(float)
    tasks = [Rows(np.ones((20, 1)), own) for own in y]
    found = adapt(tasks, family="logistic", alike=0.05)
    assert found.heterogeneity.p_value[0] > 0.05
    assert found.heterogeneity.variance[0] > 0.1
    assert np.corrcoef(found.coefs[:, 0], odds[:, 0])[0, 1] > 0.4
    pooled = adapt(tasks, family="logistic", alike=0.05, intercept=False)
    assert np.ptp(pooled.coefs) == 0


def test_thresholds_may_be_integers():
    data, y = linear(rows=30)
    one, other = (
        AdaptiveRegressor(c=number(3), alike=number(1)).fit(data, y, task="country")
        for number in (np.int8, float)
    )
    np.testing.assert_array_equal(one.coef_, other.coef_)
    np.testing.assert_array_equal(one.support_, other.support_)


def test_a_task_that_differs_keeps_its_own_and_does_not_move_the_others():
    data, y = linear()
    model = AdaptiveRegressor().fit(data, y, task="country")
    spain = model.tasks_.tolist().index("ESP")
    assert model.support_[spain, 0]
    assert model.coef_[spain, 0] == pytest.approx(-3.0, abs=0.15)
    np.testing.assert_allclose(model.shared_coef_, [1.0, -2.0, 0.5], atol=0.1)
    others = np.arange(6) != spain
    np.testing.assert_allclose(model.coef_[others, 0], 1.0, atol=0.15)
    assert (model.spread_ < 0.1).all()
    low, high = model.confidence_intervals()
    assert (low < model.coef_).all()
    assert (model.coef_ < high).all()


@pytest.mark.full
def test_with_fewer_rows_than_columns_it_is_better_than_knowing_nothing():
    coefs = np.tile(np.random.default_rng(0).normal(size=20), (20, 1))
    found = adapt(simulated(coefs, 10), family="linear", c=3.0)
    error = np.square(found.coefs[:, :20] - coefs).sum(axis=1).mean()
    assert error < 0.2 * np.square(coefs).sum(axis=1).mean()


def test_rare_classes_and_tasks_with_a_single_class():
    rng = np.random.default_rng(1)
    x, task = rng.normal(size=(29 * 40, 6)), np.repeat(range(29), 40)
    odds = -3.2 + x @ np.full(6, 0.3)
    y = rng.random(len(x)) < 1 / (1 + np.exp(-odds))
    model = AdaptiveClassifier(alike=0.05).fit(x, y, task)
    assert min(np.bincount(task, y)) == 0
    np.testing.assert_allclose(model.shared_coef_, 0.3, atol=0.3)
    assert np.isfinite(model.coef_).all()
    assert model.predict_proba(x, task).shape == (29 * 40, 2)


def test_units_do_not_matter():
    data, y = linear(rows=15)
    one = AdaptiveRegressor(standardize=True).fit(data, y, task="country")
    far = data.assign(income=1000 * data["income"] - 5, age=data["age"] / 7 + 1e3)
    other = AdaptiveRegressor().fit(far, 3 * y + 1, task="country")
    left, right = one.predict(data, task="country"), other.predict(far, task="country")
    np.testing.assert_allclose(right, 3 * left + 1, atol=1e-6)
    np.testing.assert_array_equal(one.support_, other.support_)
    scale = 1000 * data["income"].std(ddof=0) / 3
    assert other.shared_error_[0] * scale == pytest.approx(one.shared_error_[0])


def test_a_column_that_no_rows_determine_has_no_finite_error():
    """half_years is twice the age: their effect may be divided between them in any way."""
    data, y = linear(rows=40)
    names = [name for name in data.columns if name != "country"]
    twice = data.assign(half_years=2 * data[names[0]])
    found = AdaptiveRegressor().fit(twice, y, task="country")
    place = found.feature_names_in_.tolist().index("half_years")
    assert set(np.flatnonzero(np.isinf(found.shared_error_))) == {0, place}
    with pytest.raises(ValueError, match="number of tasks must be at least 1"):
        adapt([], family="linear")
