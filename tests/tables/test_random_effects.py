"""What a task's rows say given a prior: limits and closed forms."""

from functools import partial

import numpy as np
import pytest
from scipy.optimize import minimize

from engram.tables.random_effects import Prior, confirmed, moderated, posterior, start, usual_noise
from engram.tables.site import Rows, estimate_site
from tests.samples import entry


def rows(n=40, d=3, seed=0):
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.normal(size=(n, d - 1)) @ rng.normal(size=(d - 1, d - 1)), np.ones(n)])
    return Rows(x, x @ np.arange(1.0, d + 1) + 0.5 * rng.normal(size=n))


def classes(n=60, d=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    return Rows(x, (rng.random(n) < 1 / (1 + np.exp(-x @ [1.0, -0.5, 0.2][:d]))).astype(float))


def test_by_a_wide_prior_it_is_least_squares():
    data = rows()
    own = estimate_site(data)
    center = np.array([0.3, -0.2, 1.0])
    found = posterior(data, Prior(center, np.full(3, 1e5)), family="linear", sigma=own.sigma)
    np.testing.assert_allclose(center + found.gap, own.coef, rtol=1e-4)
    np.testing.assert_allclose(found.coef, own.coef, rtol=1e-4)
    np.testing.assert_allclose(np.sqrt(found.variance), own.standard_error, rtol=1e-3)
    assert found.sigma == pytest.approx(own.sigma, rel=1e-5)
    assert found.freedom == pytest.approx(own.freedom, rel=1e-5)


def test_gaps_are_generalized_least_squares_with_the_other_columns_as_noise():
    for n in [2, 30]:
        with entry(n):
            data, prior = rows(n), Prior(np.array([0.3, -0.2, 1.0]), np.array([0.5, 0.0, 2.0]))
            found = posterior(data, prior, family="linear", sigma=0.7)
            left = data.y - data.x @ prior.center
            for k in range(3):
                rest = np.where(np.arange(3) == k, 0, prior.variance)
                s = np.linalg.inv(0.49 * np.eye(n) + data.x * rest @ data.x.T)
                precision = data.x[:, k] @ s @ data.x[:, k]
                assert found.gap[k] == pytest.approx(data.x[:, k] @ s @ left / precision)
                assert found.variance[k] == pytest.approx(1 / precision)
            whole = np.linalg.inv(0.49 * np.eye(n) + data.x * prior.variance @ data.x.T)
            np.testing.assert_allclose(found.information, data.x.T @ whole @ data.x, rtol=1e-8)
            np.testing.assert_allclose(found.score, data.x.T @ whole @ left, rtol=1e-8)


def test_the_mode_of_a_likelihood_with_a_prior():
    data, prior = classes(), Prior(np.array([0.5, 0.0, 0.0]), np.array([0.2, 1.0, 0.0]))
    found = posterior(data, prior, family="logistic")

    def objective(free):
        eta = data.x @ np.append(free, 0.0)
        penalty = (free[0] - 0.5) ** 2 / 0.2 + free[1] ** 2
        return np.sum(np.logaddexp(0, eta) - data.y * eta) + penalty / 2

    expected = minimize(objective, [0.0, 0.0], tol=1e-12).x
    np.testing.assert_allclose(found.coef, [*expected, 0.0], atol=1e-5)
    assert (found.sigma, found.freedom) == (1.0, np.inf)


def test_classes_that_can_be_told_apart_have_a_finite_estimate():
    x = np.column_stack([np.arange(30.0) / 30, np.ones(30)])
    for y in (np.ones(30), np.zeros(30), (np.arange(30) > 20).astype(float)):
        data = Rows(x, y)
        assert not estimate_site(data, family="logistic").determined.any()
        found = posterior(data, start(data, "logistic"), family="logistic")
        assert np.isfinite([*found.coef, *found.gap]).all()
        assert (found.variance > 0).all()


def test_weights_count_rows():
    data = rows(10)
    counts = np.arange(10.0)
    many = Rows(np.repeat(data.x, np.arange(10), axis=0), np.repeat(data.y, np.arange(10)))
    prior = Prior(np.zeros(3), np.ones(3))
    one = posterior(data._replace(weights=counts), prior, family="linear", sigma=2.0)
    other = posterior(many, prior, family="linear", sigma=2.0)
    for left, right in zip(one, other, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-9)


def test_the_first_prior_knows_no_units():
    data = rows()
    scaled = Rows(data.x * [10.0, 0.1, 1.0], 7 * data.y)
    one, other = start(data, "linear"), start(scaled, "linear")
    np.testing.assert_allclose(other.variance[:2], 49 * one.variance[:2] / [100, 0.01])
    assert other.center[-1] == pytest.approx(7 * one.center[-1])
    rare = start(Rows(np.ones((3, 1)), np.zeros(3)), "logistic")
    assert rare.center[0] == pytest.approx(np.log(0.5 / 3.5))


def test_noise_is_moderated_by_that_of_all_as_much_as_it_differs():
    unit = posterior(rows(), Prior(np.zeros(3), np.ones(3)), family="linear")
    found = [unit._replace(sigma=s, freedom=40.0) for s in (1.0, 1.0, 3.0, 3.0)]
    # Usual 5; squared coefficient of variation (4/5)^2 = 0.64, of which 2/40 is chance.
    prior = 4 + 2 / (0.64 - 0.05)
    expected = np.sqrt([(40 * s**2 + prior * 5) / (40 + prior) for s in (1, 1, 3, 3)])
    usual = usual_noise(found)
    np.testing.assert_allclose([moderated(each, usual) for each in found], expected)
    alike = [unit._replace(sigma=s, freedom=4.0) for s in (1.0, 1.2, 1.4)]
    usual = usual_noise(alike)
    expected = ((1 + 1.44 + 1.96) / 3) ** 0.5
    np.testing.assert_allclose([moderated(each, usual) for each in alike], expected)


def test_one_case_with_an_extreme_value_does_not_set_a_coefficient_free():
    x = np.column_stack([np.zeros(40), np.ones(40)])
    x[0, 0] = 6.0
    data = Rows(x, (np.arange(40) < 2).astype(float))
    prior = Prior(np.array([0.0, -3.0]), np.zeros(2))
    found = posterior(data, prior, family="logistic")
    assert found.gap[0] / found.variance[0] ** 0.5 > 4
    apart, wide = np.array([True, False]), np.ones(2)
    many = Rows(np.tile(x, (5, 1)), np.tile(data.y, 5))  # five such cases do
    one, five = (partial(posterior, own, family="logistic") for own in (data, many))
    assert not confirmed(one, prior, wide, apart, family="logistic", reach=3.0).any()
    assert confirmed(five, prior, wide, apart, family="logistic", reach=3.0)[0]
    assert confirmed(one, prior, wide, apart, family="linear", reach=3.0) is apart


def test_impossible_priors_are_refused():
    with pytest.raises(ValueError, match="sigma must be positive and finite, got 0"):
        posterior(rows(), Prior(np.zeros(3), np.ones(3)), family="linear", sigma=0.0)
    with pytest.raises(ValueError, match="variance must be finite and >= 0"):
        posterior(rows(), Prior(np.zeros(3), -np.ones(3)), family="linear")
