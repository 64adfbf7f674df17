"""Pooling: one fit to all rows; and rows made fewer that say the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.tables.lasso import lasso
from engram.tables.site import Rows, condense, estimate_site, pool
from tests.tables.simulated import logistic_rows


def rows(seed, n, d=4):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    return Rows(x, x @ np.arange(1.0, d + 1) + rng.normal(size=n), rng.integers(0, 4, n) + 0.5)


@given(st.integers(0, 10_000), st.sampled_from([1, 3, 5, 6, 30]))
def test_condensed_rows_have_the_same_products_and_size(seed, n):
    task = rows(seed, n)
    few = condense(task)
    assert len(few.y) <= min(n, 5)
    for (x, y, counts), (u, v, sizes) in [(task.counted(), few.counted())]:
        whole, triangle = np.column_stack([x, y]), np.column_stack([u, v])
        expected = whole.T @ (counts[:, None] * whole)
        np.testing.assert_allclose(triangle.T @ (sizes[:, None] * triangle), expected, atol=1e-9)
        assert sizes.sum() == pytest.approx(counts.sum())


def test_so_estimates_are_the_same():
    task = rows(0, 40)
    for one, other in zip(estimate_site(task), estimate_site(condense(task)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    np.testing.assert_allclose(lasso(task, 0.5), lasso(condense(task), 0.5), atol=1e-6)


def test_pooling_is_least_squares_on_all_rows():
    tasks = [rows(seed, n) for seed, n in enumerate([9, 3, 20])]
    x, y, counts = (np.concatenate(c) for c in zip(*(t.counted() for t in tasks), strict=True))
    expected = estimate_site(Rows(x, y, counts))
    for one, other in zip(pool(tasks), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11)
    # By hand: of one column, sum xy / sum xx over the rows of both tasks.
    line = [Rows(np.array([[1.0], [2.0]]), np.array([3.0, 1.0])), Rows(np.ones((1, 1)), np.ones(1))]
    assert pool(line).coef.tolist() == pytest.approx([(3 + 2 + 1) / (1 + 4 + 1)])


def test_pooling_generalized_models_is_maximum_likelihood_on_all_rows():
    rng = np.random.default_rng(0)
    tasks = [logistic_rows(rng, np.array([0.5, -1.0]), n) for n in (50, 80)]
    x, y, counts = (np.concatenate(c) for c in zip(*(t.counted() for t in tasks), strict=True))
    expected = estimate_site(Rows(x, y, counts), family="logistic")
    np.testing.assert_allclose(pool(tasks, family="logistic").coef, expected.coef, rtol=1e-9)


def test_refuses_no_tasks():
    with pytest.raises(ValueError, match="number of tasks must be at least 1, got 0"):
        pool([])
