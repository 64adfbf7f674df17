"""The LASSO, and debiasing around a center: soft thresholding, both ends, optimality."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import hadamard
from sklearn.linear_model import Lasso

from engram.tables.lasso import lasso, lasso_debiasing, lasso_strength
from engram.tables.site import Rows, estimate_site
from tests.samples import entry


def rows(seed=0, n=30, d=5, weighted=False):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) @ np.diag(np.linspace(0.5, 2, d))
    y = x @ rng.normal(size=d) + rng.normal(size=n)
    return Rows(x, y, rng.integers(0, 4, n).astype(float) if weighted else None)


CENTER = np.array([1.0, -2.0, 3.0, 0.0, 0.5])


# --- Closed forms ----------------------------------------------------------------------------


def test_orthogonal_columns_are_thresholded_softly_around_the_center():
    # Columns of lengths n a^2 with a = 1, 2, 0.5. OLS is the center + (0.7, -0.2, 1.2), so the
    # gradients there are a^2 times that, (0.7, -0.8, 0.3). Less 0.25: (0.45, -0.55, 0.05), over
    # a^2.
    ones, *columns = hadamard(4).astype(float).T
    x = np.column_stack(columns) * [1, 2, 0.5]
    center = np.array([1.0, -2.0, 3.0])
    task = Rows(x, x @ (center + np.array([0.7, -0.2, 1.2])) + 5 * ones)
    found = lasso_debiasing(task, center, 0.25)
    np.testing.assert_allclose(found, [1.45, -2.1375, 3.2], atol=1e-9)
    # Around 0: OLS is (1.7, -2.2, 4.2), with gradients (1.7, -8.8, 1.05); less 1.2: (0.5, -7.6, 0).
    np.testing.assert_allclose(lasso(task, 1.2), [0.5, -1.9, 0.0], atol=1e-9)


def test_strengths_of_the_paper():
    assert lasso_strength(9, 20, 0.6) == pytest.approx(0.2 * np.log(20) ** 0.5)
    assert lasso_strength(9, 1, 0.6) == 0


# --- Reductions ------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_strength_0_is_least_squares(weighted):
    task = rows(weighted=weighted)
    own = estimate_site(task).coef
    np.testing.assert_allclose(lasso_debiasing(task, CENTER, 0), own, atol=1e-12)
    # And so it is around OLS itself, whatever the strength: nothing there is left to explain.
    np.testing.assert_allclose(lasso_debiasing(task, own, 0.3), own, atol=1e-9)


def test_strength_0_with_few_rows_is_the_nearest_of_all_solutions():
    task = rows(n=3)
    found = lasso_debiasing(task, CENTER, 0)
    np.testing.assert_allclose(task.x @ found, task.y, atol=1e-12)
    # Nearest: what leads there is a combination of rows.
    steps = np.linalg.lstsq(task.x.T, found - CENTER)[0]
    np.testing.assert_allclose(task.x.T @ steps, found - CENTER, atol=1e-12)


def test_from_the_largest_gradient_on_it_is_the_center():
    for n in [3, 30]:
        with entry(n):
            task = rows(n=n)
            largest = np.abs(task.x.T @ (task.y - task.x @ CENTER)).max() / n
            for strength in (np.inf, largest * (1 + 1e-12)):
                assert np.array_equal(lasso_debiasing(task, CENTER, strength), CENTER)
            assert np.count_nonzero(lasso_debiasing(task, CENTER, 0.99 * largest) - CENTER) == 1


# --- What is not penalized -------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_a_free_column_of_ones_is_an_intercept(weighted):
    task = rows(weighted=weighted)
    with_ones = Rows(np.insert(task.x, 2, 1.0, axis=1), task.y + 7, task.weights)
    free = np.arange(6) == 2
    solver = Lasso(0.2, tol=1e-12).fit(task.x, task.y + 7, task.weights)
    found = lasso_debiasing(with_ones, np.zeros(6), 0.2, free=free)
    assert found[2] == pytest.approx(solver.intercept_, abs=1e-6)
    np.testing.assert_allclose(found[~free], solver.coef_, atol=1e-6)
    # Penalized, it would be another.
    assert abs(lasso(with_ones, 0.2)[2] - found[2]) > 0.01


def test_free_coefficients_alone_move_at_an_infinite_strength():
    task = rows()
    free = np.array([False, True, False, False, True])
    for said in (0.0, 9.0):  # what the center says of them does not matter
        center = np.where(free, said, CENTER)
        found = lasso_debiasing(task, center, np.inf, free=free)
        assert np.array_equal(found[~free], CENTER[~free])
        left = task.y - task.x[:, ~free] @ CENTER[~free]
        expected = np.linalg.lstsq(task.x[:, free], left)[0]
        np.testing.assert_allclose(found[free], expected, atol=1e-12)


# --- Properties ------------------------------------------------------------------------------

SEEDS = st.integers(0, 10_000)
STRENGTHS = st.floats(-14, 1).map(lambda power: 10**power)


@given(SEEDS, STRENGTHS, st.sampled_from([3, 12, 40]), st.booleans())
def test_no_direction_leads_down(seed, strength, n, weighted):
    # The gradient of the squares is at most the strength, and has its size and sign where b moved.
    strength = max(strength, 1e-3) if n < 5 else strength  # below it takes passes without end
    task = rows(seed, n=n, weighted=weighted)
    if weighted and not task.weights.any():
        return
    moved = lasso_debiasing(task, CENTER, strength) - CENTER
    x, y, counts = task.counted()
    gradient = x.T @ (counts * (y - x @ (CENTER + moved))) / counts.sum()
    scale = 1 + np.abs(y - x @ CENTER).max()
    assert (np.abs(gradient) <= strength + 1e-4 * scale).all()
    far = np.abs(moved) > 1e-3
    np.testing.assert_allclose(gradient[far], strength * np.sign(moved[far]), atol=1e-4 * scale)


def test_refuses():
    for center, strength, free, message in [
        (CENTER, -0.1, None, "strength must be at least 0, got -0.1"),
        (CENTER[:3], 0.1, None, r"center.shape must be \(5,\), got \(3,\)"),
        (CENTER, 0.1, np.ones(2, bool), r"free.shape must be \(5,\), got \(2,\)"),
    ]:
        with entry(center, strength, free), pytest.raises(ValueError, match=message):
            lasso_debiasing(rows(), center, strength, free=free)
