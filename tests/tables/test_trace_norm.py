"""Trace-norm regularization: closed forms, and the conditions of an optimum."""

import numpy as np
import pytest

from engram.tables.bandits.trace_norm import LeastSquaresMoments, fit_trace_norm
from tests.samples import entry


def test_trace_norm_of_isotropic_rows_thresholds_singular_values():
    # With X'X/n = I the problem is |B - H|^2 / lambda + |B|_*: values shrink by lambda / 2.
    h = np.random.default_rng(0).normal(size=(5, 3))
    c, n = 1.7, 9.0
    by = c * np.sqrt((5 + 3) / n) / 2
    left, values, right = np.linalg.svd(h, full_matrices=False)
    assert values.min() < by < values.max()
    expected = left * np.maximum(values - by, 0) @ right
    found = fit_trace_norm([LeastSquaresMoments(np.eye(3), own, n) for own in h], c)
    np.testing.assert_allclose(found, expected, atol=1e-7)


def test_trace_norm_is_optimal():
    # B is optimal if minus the gradient of the smooth part is a subgradient of the trace norm
    # there: its largest singular value is at most 1, and its product with B is |B|_*.
    for sizes in [(40, 40, 40), (9, 400, 60, 23)]:
        for c in [0.1, 1.0]:
            with entry(sizes, c):
                rng = np.random.default_rng(2)
                rows = [(rng.normal(size=(n, 6)), rng.normal(size=n)) for n in sizes]
                parts = [(x.T @ x / len(y), x.T @ y / len(y), len(y)) for x, y in rows]
                tasks = [LeastSquaresMoments(*part) for part in parts]
                b = fit_trace_norm(tasks, c)
                strengths = [c * np.sqrt((len(sizes) + 6) / n) for n in sizes]
                each = zip(rows, b, strengths, strict=True)
                minus_gradient = np.stack(
                    [
                        2 * x.T @ (y - x @ own) / (len(y) * strength)
                        for (x, y), own, strength in each
                    ]
                )
                assert np.linalg.norm(minus_gradient, 2) <= 1 + 1e-5
                norm = np.linalg.norm(b, "nuc")
                assert norm > 0
                assert (minus_gradient * b).sum() == pytest.approx(norm, rel=1e-5)
