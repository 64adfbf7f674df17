"""Algorithm 3 against its own constraints, closed forms, and what it is worth."""

import sys

import numpy as np
import pytest
from scipy.linalg import hadamard

from engram.tables.lasso import high_dim, lasso_debiasing, transfer, transfer_bounds
from engram.tables.site import Rows
from tests.evidence.molar import compare_high_dim
from tests.samples import entry
from tests.tables.simulated import linear_rows

SIGMA = 0.1
SOLVED = 1e-6  # to which the solver satisfies bounds, in units of the noise


def problem(sizes=(9, 14, 11, 8), dim=16, weighted=False):
    """Tasks of fewer rows than columns: a shared parameter of three, each with one of its own."""
    rng = np.random.default_rng(3)
    beta = np.zeros(dim)
    beta[[1, 5, 9]] = 1.0, -0.7, 0.4
    tasks, truth = [], []
    for size in sizes:
        own = beta.copy()
        own[rng.integers(dim)] += 0.5
        task = linear_rows(rng, own, size, SIGMA)
        counts = rng.integers(0, 3, size) + 0.5
        tasks.append(task._replace(weights=counts) if weighted else task)
        truth.append(own)
    return tasks, beta, np.array(truth)


def gradients(tasks, found):
    """X'(X (beta + delta_m) - y) of each task, shape (M, d), and the sizes."""
    each = []
    for task, delta in zip(tasks, found.differences, strict=True):
        x, y, counts = task.counted()
        each.append(x.T @ (counts * (x @ (found.coef + delta) - y)))
    return np.array(each), np.array([task.counted()[2].sum() for task in tasks])


@pytest.mark.parametrize("weighted", [False, True])
def test_the_solution_is_within_the_bounds_and_costs_no_more_than_others(weighted):
    tasks, _, truth = problem(weighted=weighted)
    found = transfer(tasks, SIGMA, c=2)
    center = np.median(truth, axis=0)
    other = found._replace(coef=center, differences=truth - center)
    costs = []
    for one, slack in ((found, SOLVED * SIGMA), (other, 0)):  # the truth is within them, too
        each, sizes = gradients(tasks, one)
        bounds = transfer_bounds(sizes, 16, 2 * SIGMA)
        assert (np.abs(each).max(axis=1) / sizes <= bounds.own + slack).all()
        assert np.abs(each.sum(axis=0)).max() / sizes.sum() <= bounds.total + slack
        lengths = np.abs(one.differences).sum(axis=1)
        weights = bounds.own * sizes / sizes.sum()
        costs.append(bounds.total * np.abs(one.coef).sum() + weights @ lengths)
    assert costs[0] < costs[1]


def test_bounds_by_hand():
    own, total = transfer_bounds(np.array([4.0, 9.0]), 20, 0.6)
    np.testing.assert_allclose(own, [0.3 * np.log(80) ** 0.5, 0.2 * np.log(180) ** 0.5])
    assert total == pytest.approx(0.6 * (np.log(20) / 13) ** 0.5)


def test_orthogonal_columns_are_thresholded_softly():
    # X'X = n I, so the gradients are n (beta + delta - z), with z a task's own OLS. For one task
    # lambda_all < lambda_1 makes beta the cheaper, and binds it: soft(z, lambda_all).
    x = hadamard(8)[:, :3].astype(float)
    z = np.array([2.0, -1.0, 0.125])
    total = transfer_bounds(np.array([8.0]), 3, 0.5).total  # 0.1853
    expected = [2 - total, -1 + total, 0.0]
    found = transfer([Rows(x, x @ z)], 0.5)
    np.testing.assert_allclose(found.coef, expected, atol=1e-6)
    np.testing.assert_allclose(found.differences, 0, atol=1e-6)
    # Three tasks alike: the same, with their common bound.
    total = transfer_bounds(np.full(3, 8.0), 3, 0.5).total
    found = transfer([Rows(x, x @ z)] * 3, 0.5)
    np.testing.assert_allclose(found.coef, [2 - total, -1 + total, 0.125 - total], atol=1e-6)
    np.testing.assert_allclose(found.differences, 0, atol=1e-6)


def test_what_one_task_alone_has_goes_into_its_delta():
    # z is 0 for three tasks and 4 for the last. A unit of its delta costs lambda_m / 4, a unit of
    # beta lambda_all, which is more.
    x = hadamard(8)[:, :3].astype(float)
    tasks = [Rows(x, 4 * x[:, 0] if last else np.zeros(8)) for last in (False, False, False, True)]
    bounds = transfer_bounds(np.full(4, 8.0), 3, 0.5)
    assert bounds.own[0] / 4 < bounds.total
    own = transfer(tasks, 0.5)
    np.testing.assert_allclose(own.coef, 0, atol=1e-6)
    # The sum of gradients binds before the task's own does: 8 (delta - 4) / 32 = -lambda_all.
    need = max(4 - bounds.own[0], 4 - 4 * bounds.total)
    assert own.differences[3, 0] == pytest.approx(need, abs=1e-6)


def test_deltas_stay_within_the_radius_and_without_any_all_tasks_are_one():
    tasks, *_ = problem()
    free = transfer(tasks, SIGMA, c=2).differences
    assert np.linalg.norm(free, axis=1).max() > 0.25
    found = transfer(tasks, SIGMA, c=2, radius=0.2)
    np.testing.assert_allclose(np.linalg.norm(found.differences, axis=1).max(), 0.2, atol=1e-5)
    # With none, one parameter would have to fit all tasks to their noise.
    with pytest.raises(ValueError, match=r"parameters are within the bounds \(infeasible\), got 2"):
        transfer(tasks, SIGMA, c=2, radius=0)
    np.testing.assert_array_equal(transfer([tasks[0]] * 3, SIGMA, radius=0).differences.round(6), 0)


# --- Reductions and invariances --------------------------------------------------------------


def test_debiasing_is_the_lasso_around_what_was_found():
    tasks, *_ = problem()
    center = transfer(tasks, SIGMA, c=0.8).coef
    own = transfer_bounds(np.array([9.0, 14.0, 11.0, 8.0]), 16, 0.8 * SIGMA).own
    expected = [lasso_debiasing(t, center, v) for t, v in zip(tasks, own, strict=True)]
    np.testing.assert_allclose(high_dim(tasks, SIGMA, c=0.8)[0], expected, atol=1e-9)


def test_the_order_of_tasks_and_the_unit_of_y_do_not_matter():
    tasks, *_ = problem()
    one = transfer(tasks, SIGMA)
    for unit in [1.0, 1e-4, 1e4]:
        with entry(unit):
            other = transfer([t._replace(y=unit * t.y) for t in tasks[::-1]], unit * SIGMA)
            np.testing.assert_allclose(other.coef, unit * one.coef, atol=1e-5 * unit)
            found = other.differences[::-1]
            np.testing.assert_allclose(found, unit * one.differences, atol=1e-5 * unit)


# --- What it is worth ------------------------------------------------------------------------


@pytest.mark.full
def test_it_beats_a_lasso_for_each_task():
    found = compare_high_dim(trials=1, dim=60, size=30)
    others = [found["a LASSO for each task"], found["one LASSO for all"]]
    assert found["Algorithm 3"]["error"] < 0.8 * min(row["error"] for row in others)
    assert all(row["seconds"] > 0 for row in found.values())


def test_without_cvxpy_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.raises(ImportError, match=r"needs cvxpy: pip install .* '\.\[convex\]'"):
        transfer(problem()[0], SIGMA)


def test_refuses():
    for tasks, sigma, given, message in [
        ([], 1.0, {}, "number of tasks must be at least 1, got 0"),
        (problem()[0], 0.0, {}, "sigma must be positive, got 0.0"),
        (problem()[0], 1.0, {"c": 0.0}, "c must be positive, got 0.0"),
        (problem()[0], 1.0, {"radius": -1.0}, "radius must be at least 0, got -1.0"),
    ]:
        with entry(tasks, sigma, given), pytest.raises(ValueError, match=message):
            transfer(tasks, sigma, **given)
