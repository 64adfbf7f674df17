"""Estimates of one task, against textbook formulas; and of the rows of all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from engram.tables.families import FAMILIES
from engram.tables.site import Rows, condense, estimate_site, pool, why_undetermined
from tests.samples import entry

NAMES = ["a", "b", "c", "intercept"]


def table(n=60, d=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) @ (np.eye(d) + 0.4)  # correlated columns
    x[:, -1] = 1
    eta = x @ np.array([0.8, -0.5, 0.3, 0.2])
    targets = {
        "linear": eta + 0.7 * rng.normal(size=n),
        "logistic": (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float),
        "poisson": rng.poisson(np.exp(eta)).astype(float),
    }
    return x, targets


def test_least_squares_is_the_textbooks():
    x, targets = table()
    y = targets["linear"]
    site = estimate_site(Rows(x, y))
    inverse = np.linalg.inv(x.T @ x)
    coef = inverse @ x.T @ y
    np.testing.assert_allclose(site.coef, coef, rtol=1e-12)
    np.testing.assert_allclose(site.scale, np.sqrt(np.diag(inverse)), rtol=1e-12)
    assert site.sigma == pytest.approx(np.sqrt(((y - x @ coef) ** 2).sum() / (60 - 4)), rel=1e-12)
    assert (site.size, site.freedom) == (60, 56)
    assert site.determined.all()


@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_a_likelihoods_maximum_is_that_of_a_general_optimizer(family):
    x, targets = table()
    y, model = targets[family], FAMILIES[family]
    site = estimate_site(Rows(x, y), family=family)

    def loss(beta):
        eta = x @ beta
        psi = np.logaddexp(0, eta) if family == "logistic" else np.exp(eta)
        return (psi - y * eta).sum()  # minus the log-likelihood (59), but for rho

    found = minimize(loss, np.zeros(4), method="BFGS", options={"gtol": 1e-7})
    np.testing.assert_allclose(site.coef, found.x, atol=1e-5)
    np.testing.assert_allclose(x.T @ (model.mean(x @ site.coef) - y), 0, atol=1e-8)
    information = x.T @ (model.curvature(x @ site.coef)[:, None] * x)
    np.testing.assert_allclose(site.scale, np.sqrt(np.diag(np.linalg.inv(information))), rtol=1e-9)
    assert (site.sigma, site.size) == (1, 60)


def test_an_integer_weight_is_a_number_of_copies():
    x, targets = table()
    weights = np.random.default_rng(1).integers(0, 4, 60)
    copies = np.repeat(np.arange(60), weights)
    for family, y in targets.items():
        weighted = estimate_site(Rows(x, y, weights.astype(float)), family=family)
        copied = estimate_site(Rows(x[copies], y[copies]), family=family)
        for one, other in zip(weighted, copied, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-7, err_msg=family)


def test_noise_that_is_known_is_not_estimated():
    x, targets = table()
    site = estimate_site(Rows(x, targets["linear"]), sigma=0.7)
    assert (site.sigma, site.freedom) == (0.7, np.inf)
    with pytest.raises(ValueError, match="sigma must be None, but for family linear"):
        estimate_site(Rows(x, targets["logistic"]), family="logistic", sigma=0.7)


@pytest.mark.parametrize("family", ["linear", "logistic", "poisson"])
def test_rows_that_determine_some_coefficients_say_so_and_the_rest_is_right(family):
    x, targets = table()
    y = targets[family]
    clean = estimate_site(Rows(x[:, [0, 1, 3]], y), family=family)
    # A column that is 0 throughout: the others are as if it were not there.
    x[:, 2] = 0
    site = estimate_site(Rows(x, y), family=family)
    assert site.determined.tolist() == [True, True, False, True]
    np.testing.assert_allclose(site.coef[[0, 1, 3]], clean.coef, rtol=1e-6)
    np.testing.assert_allclose(site.scale[[0, 1, 3]], clean.scale, rtol=1e-6)
    assert why_undetermined(Rows(x, y), NAMES, family=family) == "column c is constant"
    # One that is the sum of two others: none of the three is determined, the fourth is.
    x[:, 2] = x[:, 0] + x[:, 1]
    site = estimate_site(Rows(x, y), family=family)
    assert site.determined.tolist() == [False, False, False, True]
    np.testing.assert_allclose(site.coef[3], clean.coef[2], rtol=1e-6)
    reason = why_undetermined(Rows(x, y), NAMES, family=family)
    assert reason == "column c is a linear combination of others"


def test_a_constant_column_beside_an_intercept():
    x, targets = table()
    x[:, 1] = 3
    site = estimate_site(Rows(x, targets["linear"]))
    assert site.determined.tolist() == [True, False, True, False]
    reason = why_undetermined(Rows(x, targets["linear"]), NAMES, family="linear")
    assert reason == "column b is constant"


def test_without_more_rows_than_coefficients_nothing_is_determined():
    for n in [1, 3, 4]:
        with entry(n):
            x, targets = table()
            rows = Rows(x[:n], targets["linear"][:n])
            site = estimate_site(rows)
            assert not site.determined.any()
            assert (site.sigma, site.size) == (np.inf, n)
            reason = why_undetermined(rows, NAMES, family="linear")
            assert reason == f"it has {n} rows for 4 coefficients"


def test_classes_that_are_told_apart_and_counts_of_nothing_have_no_estimate():
    x = np.stack([np.arange(-10.0, 10), np.ones(20)], axis=1)
    rows = Rows(x, (x[:, 0] > 0).astype(float))
    assert not estimate_site(rows, family="logistic").determined.any()
    assert "certainty" in why_undetermined(rows, ["a", "intercept"], family="logistic")
    one = Rows(x, np.ones(20))
    assert not estimate_site(one, family="logistic").determined.any()
    reason = why_undetermined(one, ["a", "intercept"], family="logistic")
    assert reason == "all its rows are of one class"
    none = Rows(x, np.zeros(20))
    assert not estimate_site(none, family="poisson").determined.any()
    reason = why_undetermined(none, ["a", "intercept"], family="poisson")
    assert reason == "all its counts are 0"


@given(st.integers(-6, 6), st.integers(-6, 6))
def test_units_of_columns_and_target_scale_the_estimate(column, target):
    x, targets = table()
    a, b = 10.0**column, 10.0**target
    site = estimate_site(Rows(x, targets["linear"]))
    scaled = estimate_site(Rows(x * [a, 1, 1, 1], targets["linear"] * b))
    np.testing.assert_allclose(scaled.coef * [a, 1, 1, 1] / b, site.coef, rtol=1e-8)
    np.testing.assert_allclose(scaled.scale * [a, 1, 1, 1], site.scale, rtol=1e-8)
    assert scaled.sigma / b == pytest.approx(site.sigma, rel=1e-8)


def test_large_counts_have_an_estimate():
    # A solver that starts at 0 overflows on its way to the mean.
    rng = np.random.default_rng(0)
    x = np.hstack([rng.normal(size=(500, 3)), np.ones((500, 1))])
    beta = np.array([0.5, -0.3, 0.1, 7.0])
    site = estimate_site(Rows(x, rng.poisson(np.exp(x @ beta)).astype(float)), family="poisson")
    np.testing.assert_allclose(site.coef, beta, atol=0.01)


def test_a_long_tail_is_no_separation():
    rng = np.random.default_rng(0)
    x = np.stack([rng.lognormal(0, 1.5, 2000), np.ones(2000)], axis=1)
    y = (rng.random(2000) < 1 / (1 + np.exp(-(x[:, 0] - 1)))).astype(float)
    site = estimate_site(Rows(x, y), family="logistic")
    assert np.abs(x @ site.coef).max() > 30
    np.testing.assert_allclose(site.coef, [1, -1], atol=0.3)


def test_a_constant_target_is_no_sign_of_knowing_the_truth():
    x, _ = table()
    for value in (0.0, 5.0):
        rows = Rows(x, np.full(60, value))
        assert not estimate_site(rows).determined.any()
        assert why_undetermined(rows, NAMES, family="linear") == "its target is constant"


def test_an_intercept_does_what_centering_does_but_for_a_degree_of_freedom():
    """Frisch and Waugh 1933."""
    x, targets = table()
    y = targets["linear"]
    own = estimate_site(Rows(x, y))
    within = estimate_site(Rows(x[:, :3] - x[:, :3].mean(axis=0), y - y.mean()))
    np.testing.assert_allclose(own.coef[:3], within.coef, rtol=1e-11)
    np.testing.assert_allclose(own.scale[:3], within.scale, rtol=1e-11)
    assert own.coef[3] == pytest.approx(y.mean() - x[:, :3].mean(axis=0) @ within.coef)
    assert own.freedom == within.freedom - 1
    assert own.sigma**2 * own.freedom == pytest.approx(within.sigma**2 * within.freedom)


# --- Rows of all tasks --------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.sampled_from([1, 3, 5, 6, 30]))
def test_condensed_rows_have_the_same_products_and_size(seed, n):
    rng = np.random.default_rng(seed)
    x, y, counts = rng.normal(size=(n, 4)), rng.normal(size=n), rng.integers(0, 4, n) + 0.5
    u, v, sizes = condense(Rows(x, y, counts)).counted()
    assert len(v) <= min(n, 5)
    whole, triangle = np.column_stack([x, y]), np.column_stack([u, v])
    expected = whole.T @ (counts[:, None] * whole)
    np.testing.assert_allclose(triangle.T @ (sizes[:, None] * triangle), expected, atol=1e-9)
    assert sizes.sum() == pytest.approx(counts.sum())


def test_pooling_fits_the_rows_of_all_tasks():
    x, targets = table()
    weights = np.random.default_rng(1).integers(1, 4, 60).astype(float)
    for family, y in targets.items():
        parts = [Rows(x[some], y[some], weights[some]) for some in (slice(40), slice(40, 60))]
        expected = estimate_site(Rows(x, y, weights), family=family)
        for one, other in zip(pool(parts, family=family), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, err_msg=family)
    # By hand: of one column, sum xy / sum xx over the rows of both tasks.
    line = [Rows(np.array([[1.0], [2.0]]), np.array([3.0, 1.0])), Rows(np.ones((1, 1)), np.ones(1))]
    assert pool(line).coef.tolist() == pytest.approx([(3 + 2 + 1) / (1 + 4 + 1)])
    with pytest.raises(ValueError, match="number of tasks must be at least 1, got 0"):
        pool([])
