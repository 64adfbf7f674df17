"""Mixed models: against dense matrices and an analysis of variance by hand."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from engram.tables.mixed import fit_mixed
from engram.tables.site import Rows

SIZES = (3, 9, 14, 6, 11, 8, 5, 12)  # rows of tasks; the first has fewer than columns
SPREAD = np.array([0.8, 0.0, 0.4, 1.5])  # of coefficients over tasks; the last are intercepts


def tasks(family="linear", sizes=SIZES, strength=1.0):
    """Tasks whose coefficients scatter by ``SPREAD``, with columns of unlike units."""
    rng, found = np.random.default_rng(3), []
    for size in sizes:
        x = np.column_stack([rng.normal(size=(size, 3)), np.ones(size)])
        eta = x @ (strength * (np.array([1.0, -1.0, 0.5, 0.3]) + SPREAD * rng.normal(size=4)))
        if family == "linear":
            y = eta + 0.7 * rng.normal(size=size)
        elif family == "logistic":
            y = (rng.random(size) < expit(eta)).astype(float)
        else:
            y = rng.poisson(np.exp(eta)).astype(float)
        found.append(Rows(x * [1.0, 20.0, 0.1, 1.0], y))
    return found


def dense(rows):
    """Returns all rows with the random columns of all tasks, (n, M d), by task."""
    x, y = np.vstack([r.x for r in rows]), np.concatenate([r.y for r in rows])
    z = np.zeros((len(y), len(rows) * x.shape[1]))
    start = 0
    for m, r in enumerate(rows):
        z[start : start + len(r.y), m * x.shape[1] : (m + 1) * x.shape[1]] = r.x
        start += len(r.y)
    return x, y, z


def restricted(rows, t):
    """-2 log of the restricted likelihood of variance ratios t, by the matrix V of all rows."""
    x, y, z = dense(rows)
    v = np.eye(len(y)) + z * np.tile(t, len(rows)) @ z.T
    inner = x.T @ np.linalg.solve(v, x)
    left = y - x @ np.linalg.solve(inner, x.T @ np.linalg.solve(v, y))
    free = len(y) - x.shape[1]
    noise = left @ np.linalg.solve(v, left) / free
    volumes = np.linalg.slogdet(v)[1] + np.linalg.slogdet(inner)[1]
    return volumes + free * (1 + np.log(2 * np.pi * noise)), noise


def test_a_linear_model_has_the_least_criterion_of_dense_matrices():
    rows = tasks()
    found = fit_mixed(rows, np.ones(4, dtype=bool))
    t = found.variance / found.sigma**2
    criterion, noise = restricted(rows, t)
    assert found.criterion == pytest.approx(criterion, abs=1e-7)
    assert found.sigma**2 == pytest.approx(noise, rel=1e-7)
    units = np.mean(np.square(dense(rows)[0]), axis=0)
    for begin in (0.05, 1.0):
        start, bounds = np.full(4, begin), [(0, None)] * 4
        best = minimize(lambda t: restricted(rows, t / units)[0], start, bounds=bounds)
        assert found.criterion <= best.fun + 1e-5
    np.testing.assert_allclose(t * units, best.x, rtol=0.02, atol=1e-3)


def test_deviations_and_shared_coefficients_solve_henderson_s_equations():
    rows = tasks()
    found = fit_mixed(rows, np.array([True, False, True, True]))
    assert found.variance[1] == 0
    assert (found.variance[[0, 2, 3]] > 0).all()
    x, y, z = dense(rows)
    some = np.tile(found.variance > 0, len(rows))
    design = np.hstack([x, z[:, some]])
    penalty = found.sigma**2 / np.tile(found.variance, len(rows))[some]
    whole = design.T @ design + np.diag(np.append(np.zeros(4), penalty))
    expected = np.linalg.solve(whole, design.T @ y)
    np.testing.assert_allclose(found.shared, expected[:4], rtol=1e-6)
    deviations = found.deviations[:, found.variance > 0].ravel()
    np.testing.assert_allclose(deviations, expected[4:], rtol=1e-5, atol=1e-7)
    assert (found.deviations[:, 1] == 0).all()


def test_balanced_random_intercepts_are_those_of_an_analysis_of_variance():
    # One way, n rows a task: REML has s^2 = MSW and tau^2 = (MSB - MSW) / n, or, if that is
    # negative, 0 and the variance of all rows (Searle, Casella, McCulloch 1992, Sec. 3.8).
    for spread in [0.0, 2.0]:
        rng = np.random.default_rng(2)
        y = spread * rng.normal(size=(12, 1)) + rng.normal(size=(12, 5))
        if not spread:
            y -= 0.9 * y.mean(1, keepdims=True)  # tasks that are more alike than by chance
        found = fit_mixed([Rows(np.ones((5, 1)), own) for own in y], np.ones(1, dtype=bool))
        within, between = y.var(axis=1, ddof=1).mean(), 5 * y.mean(1).var(ddof=1)
        assert (between > within) == (spread > 0)
        noise, share = (within, 1 - within / between) if spread else (y.var(ddof=1), 0.0)
        assert found.shared[0] == pytest.approx(y.mean())
        assert found.sigma**2 == pytest.approx(noise, rel=1e-4)
        assert found.variance[0] == pytest.approx(share * between / 5, rel=1e-3)
        expected = share * (y.mean(1) - y.mean())
        np.testing.assert_allclose(found.deviations[:, 0], expected, rtol=1e-3, atol=1e-6)


def laplace(rows, family, variance):
    """-2 log of the likelihood with beta and b integrated out by Laplace, for given variances."""
    x, y, z = dense(rows)
    some = np.tile(variance > 0, len(rows))
    design = np.hstack([x, z[:, some]])
    precision = np.append(np.zeros(4), 1 / np.tile(variance, len(rows))[some])
    mean = expit if family == "logistic" else np.exp
    log_partition = (lambda eta: np.logaddexp(0, eta)) if family == "logistic" else np.exp
    saturated = 0.0 if family == "logistic" else np.sum(y[y > 0] * np.log(y[y > 0]) - y[y > 0])
    b = np.zeros(design.shape[1])
    for _ in range(60):
        eta = design @ b
        weights = mean(eta) * (1 - mean(eta)) if family == "logistic" else mean(eta)
        hessian = design.T @ (weights[:, None] * design) + np.diag(precision)
        slope = design.T @ (mean(eta) - y) + precision * b
        b = b - np.clip(np.linalg.solve(hessian, slope), -2, 2)
    assert np.abs(slope).max() < 1e-8
    deviance = 2 * (saturated - y @ eta + log_partition(eta).sum()) + b @ (precision * b)
    ratio = np.linalg.slogdet(hessian)[1] + len(rows) * np.log(variance[variance > 0]).sum()
    return deviance + ratio, b


@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_classes_and_counts_have_the_least_criterion_of_laplace(family):
    rows = tasks(family, sizes=(30, 22, 41, 18, 35, 26), strength=0.7)
    found = fit_mixed(rows, np.array([True, False, True, True]), family=family)
    criterion, mode = laplace(rows, family, found.variance)
    assert found.criterion == pytest.approx(criterion, abs=1e-6)
    assert found.sigma == 1
    np.testing.assert_allclose(found.shared, mode[:4], rtol=1e-5)
    free = np.flatnonzero(found.variance)
    assert len(free) >= 2
    for k in free:  # the slopes of the criterion of dense matrices, by differences
        ends = []
        for factor in (0.99, 1.01):
            moved = found.variance.copy()
            moved[k] *= factor
            ends.append(laplace(rows, family, moved)[0])
        assert abs(ends[1] - ends[0]) / 0.02 < 2e-3
        assert min(ends) > criterion


def test_units_of_columns_change_nothing_but_the_units_of_coefficients():
    rows, units = tasks(), np.array([1e3, 1e-4, 7.0, 1.0])
    one = fit_mixed(rows, np.ones(4, dtype=bool))
    other = fit_mixed([Rows(r.x * units, r.y) for r in rows], np.ones(4, dtype=bool))
    np.testing.assert_allclose(other.shared * units, one.shared, rtol=1e-6)
    np.testing.assert_allclose(other.variance * units**2, one.variance, rtol=1e-6, atol=1e-12)
    weighted = [Rows(r.x, r.y, np.full(len(r.y), 2.0)) for r in rows]
    doubled = [Rows(np.vstack([r.x, r.x]), np.append(r.y, r.y)) for r in rows]
    one, other = (fit_mixed(each, np.ones(4, dtype=bool)) for each in (weighted, doubled))
    np.testing.assert_allclose(one.deviations, other.deviations, rtol=1e-6, atol=1e-9)


def test_what_has_no_estimate_is_refused():
    x = np.column_stack([np.arange(6.0), np.ones(6)])
    line, every = [Rows(x, 2 * x[:, 0]), Rows(x, 2 * x[:, 0])], np.ones(2, dtype=bool)
    with pytest.raises(ValueError, match="it leaves no noise"):
        fit_mixed(line, every)
    with pytest.raises(ValueError, match="needs more rows than its 2 shared coefficients, got 2"):
        fit_mixed([Rows(x[:1], x[:1, 0]), Rows(x[1:2], x[1:2, 0])], every)
    twice = [Rows(np.column_stack([x, x[:, 0]]), x[:, 0])]
    with pytest.raises(ValueError, match="some of its columns depend on each other"):
        fit_mixed(twice, np.ones(3, dtype=bool))
    apart = [Rows(x, (x[:, 0] > 2).astype(float))] * 3
    with pytest.raises(ValueError, match="no maximum of its likelihood was found"):
        fit_mixed(apart, np.array([False, True]), family="logistic")
