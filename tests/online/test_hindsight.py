"""The best decision in hindsight: by hand, against scipy's solver, and its own proof."""

from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog

from engram.online import loss_streams
from engram.online.loss_streams import Total, least_on_ball, least_quadratic
from tests.online.test_loss_streams import STREAMS
from tests.samples import entry

# --- Quadratics by hand ----------------------------------------------------------------------


def test_quadratics_on_a_ball():
    for form, linear, radius, expected in [
        # Inside: H^-1 h = (1/2, 1/4).
        ([[2.0, 0.0], [0.0, 8.0]], [1.0, 2.0], 1.0, [0.5, 0.25]),
        # On the sphere: nu = 1 gives (6 / 2, 20 / 5) = (3, 4), of length 5.
        ([[1.0, 0.0], [0.0, 4.0]], [6.0, 20.0], 5.0, [3.0, 4.0]),
        # No curvature: downhill to the sphere.
        ([[0.0, 0.0], [0.0, 0.0]], [3.0, -4.0], 2.0, [1.2, -1.6]),
        # None in one direction, where there is no slope: the least x.
        ([[2.0, 0.0], [0.0, 0.0]], [1.0, 0.0], 1.0, [0.5, 0.0]),
        # None in one direction, where there is: nu = 2 gives (4 / 4, 2 / 2), of length sqrt 2.
        ([[2.0, 0.0], [0.0, 0.0]], [4.0, 2.0], 2**0.5, [1.0, 1.0]),
        ([[3.0, 1.0], [1.0, 3.0]], [0.0, 0.0], 1.0, [0.0, 0.0]),
    ]:
        with entry(form, linear, radius):
            found = least_quadratic(np.array(form), np.array(linear), radius)
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_a_minimum_that_newton_steps_overshoot():
    # sqrt(1 + x^2): from |x| > 1 Newton's own steps, x -> -x^3, lead away.
    def total(x):
        root = np.sqrt(1 + x @ x)
        return Total(float(root), x / root, np.eye(1) / root**3)

    found = least_on_ball(total, np.array([7.0]), 9.0)
    assert abs(found.decision[0]) < 1e-6
    assert found.total == pytest.approx(1.0, abs=1e-12)
    assert found.gap < 1e-5


def test_forms_with_no_curvature_but_rounding():
    # h lies across the one direction that bends: on the sphere, x = r h / |h|.
    for seed in range(40):
        with entry(seed):
            rng = np.random.default_rng(seed)
            a, h = rng.standard_normal((2, 6))
            h -= (a @ h) / (a @ a) * a
            found = least_quadratic(1e-3 * np.outer(a, a), h, 0.3)
            np.testing.assert_allclose(found, 0.3 * h / np.linalg.norm(h), atol=1e-9)


# --- Streams ---------------------------------------------------------------------------------


def test_no_decision_is_better_by_more_than_the_gap():
    far = loss_streams.directions(np.random.default_rng(1), 50, 4)
    steps = 1e-2 * loss_streams.directions(np.random.default_rng(0), 50, 4)
    for name, rounds in product(STREAMS, [1, 7, 300]):
        with entry(name, rounds):
            stream = STREAMS[name](np.random.default_rng(5), rounds, 4)
            best = stream.best()
            assert np.linalg.norm(best.decision) <= 1 + 1e-9
            assert best.total == pytest.approx(stream.losses(best.decision).sum(), abs=1e-9)
            assert -1e-9 <= best.gap < 1e-6
            for other in (*(best.decision + steps), *far, 0.5 * far[0]):
                inside = other / max(1.0, np.linalg.norm(other))
                assert stream.losses(inside).sum() >= best.total - best.gap - 1e-9


def test_absolute_totals_against_a_linear_programme():
    # min sum r, -r <= A x - b <= r; its solution is in the ball, so the ball does not count.
    stream = loss_streams.absolute(np.random.default_rng(3), 150, 3)
    a, b, eye = stream.rows, stream.targets, np.eye(150)
    found = linprog(
        np.r_[np.zeros(3), np.ones(150)],
        A_ub=np.block([[a, -eye], [-a, -eye]]),
        b_ub=np.r_[b, -b],
        bounds=[(None, None)] * 153,
    )
    best = stream.best()
    assert np.linalg.norm(found.x[:3]) < 1
    assert best.total == pytest.approx(found.fun, abs=1e-6)
    np.testing.assert_allclose(best.decision, found.x[:3], atol=1e-5)
