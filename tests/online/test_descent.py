"""Descent and Newton steps: rounds by hand, and inverses that stay so."""

from math import sqrt

import numpy as np
import pytest

from engram.online.descent import ogd, online_newton_step, optimistic_newton, optimistic_ogd
from engram.online.domains import ball, box
from engram.online.learner import newton_pool, vectorized
from tests.online.support import adversaries, play
from tests.samples import entry

LINE = box(np.array([-10.0]), np.array([10.0]))  # D = 20


def decisions(learner, gradients, start=None):
    """On a line, given gradients."""
    given = np.array(gradients)[:, None]
    return play(learner, lambda t, x: given[t], len(given), start)[0][:, 0]


# --- By hand ---------------------------------------------------------------------------------


def test_two_rounds_of_ogd():
    # D / G = 8 / 4 = 2. x_2 = -2 (1, 0.5); x_3 = x_2 - 2 / sqrt 2 (-3, 1) = (2.24.., -2.41..), and
    # of length 3.29 inside; x_4 = x_3 - 2 / sqrt 3 (-3, 1) = (5.7, -3.57), of which 4 / |.|.
    learner = ogd(ball(2, 4.0), gradient_bound=4.0)
    g = np.array([[1.0, 0.5], [-3.0, 1.0], [-3.0, 1.0], [0.0, 0.0]])
    x, _ = play(learner, lambda t, x: g[t], 4)
    third = np.array([-2 + 3 * sqrt(2), -1 - sqrt(2)])
    fourth = third + 2 / sqrt(3) * np.array([3.0, -1.0])
    assert x[:3] == pytest.approx(np.array([[0, 0], [-2, -1], third]), abs=1e-15)
    assert x[3] == pytest.approx(4 * fourth / np.linalg.norm(fourth), abs=1e-15)


def test_ogd_on_a_strongly_convex_loss_is_at_the_mean():
    # f_t = lambda / 2 |x - z_t|^2 and step 1 / (lambda t): x_t+1 = (1 - 1/t) x_t + z_t / t.
    curvature, z = 0.7, np.random.default_rng(0).normal(size=(30, 3))
    learner = ogd(ball(3, 9.0), gradient_bound=99.0, step=lambda t: 1 / (curvature * t))
    x, _ = play(learner, lambda t, x: curvature * (x - z[t]), 30)
    means = np.cumsum(z, axis=0) / np.arange(1, 31)[:, None]
    assert x[1:] == pytest.approx(means[:-1], abs=1e-14)


def test_three_rounds_of_lemma_10():
    # gamma = 4 / 20 lets steps be 5 at most, D / sqrt(G^2 + V) is less: 20 / 5 = 4 twice, and then,
    # V = (1 + 0.5)^2, 20 / sqrt(27.25), and then, V = 2.25 + 0.64, 20 / sqrt(27.89).
    learner = optimistic_ogd(LINE, gradient_bound=5.0, smoothness=1 / 20)
    third, fourth = 20 / sqrt(27.25), 20 / sqrt(27.89)
    x = decisions(learner, [1.0, -0.5, 0.3, 0.0])
    # The centers are 0, -4, -2, -2 - 0.3 third.
    expected = [0.0, -4 - 4, -2 + 0.5 * third, -2 - 0.3 * third - 0.3 * fourth]
    assert x == pytest.approx(expected, abs=1e-14)
    # gamma = 4 / 10: steps of 2.5.
    learner = optimistic_ogd(LINE, gradient_bound=5.0, smoothness=1 / 10)
    assert decisions(learner, [1.0, -0.5, 0]) == pytest.approx([0, -5, -2.5 + 2 * 1.25], abs=1e-14)


def test_three_rounds_of_lemma_12():
    # 2 / (4 L + lambda t) with L = 1/2, lambda = 0.4: 2 / 2.4, 2 / 2.8, 2 / 3.2.
    learner = optimistic_ogd(LINE, gradient_bound=5.0, smoothness=0.5, strong_convexity=0.4)
    x = decisions(learner, [1.0, -0.5, 0.0])
    centers = [-2 / 2.4, -2 / 2.4 + 1 / 2.8]
    expected = [0.0, centers[0] - 2 / 2.8, centers[1] + 1 / 3.2]
    assert x == pytest.approx(expected, abs=1e-14)


def test_the_online_newton_step_on_a_square():
    # (x - z)^2 on [-1, 1]: G = 4, D = 2, 1 / (4 G D) = 1 / 32; A = 1 / (gamma D)^2 + sum g^2.
    z = [0.5, -1.0, 0.0]
    for alpha, gamma in [(1 / 8, 1 / 64), (1 / 100, 1 / 200)]:
        with entry(alpha, gamma):
            learner = online_newton_step(ball(1, 1.0), gradient_bound=4.0, exp_concavity=alpha)
            x, _ = play(learner, lambda t, x: 2 * (x - z[t]), 3)
            a = 1 / (2 * gamma) ** 2 + 1  # g_1 = -1
            second = 1 / (gamma * a)
            g = 2 * (second + 1)
            third = second - g / (gamma * (a + g**2))
            assert x[:, 0] == pytest.approx([0.0, second, third], abs=1e-14)
            assert abs(third) < 0.9  # no projection


def test_two_rounds_of_lemma_11():
    # U = 4 L + alpha G^2 / 2 + alpha / 2 sum g^2 = 0.4 + 0.3 (25 + 1 + 0.25 ...), L = 0.1.
    learner = optimistic_newton(LINE, gradient_bound=5.0, smoothness=0.1, exp_concavity=0.6)
    x = decisions(learner, [1.0, -0.5, 0.0])
    u = [7.9, 8.2, 8.275]
    centers = [-1 / u[0], -1 / u[0] + 0.5 / u[1]]  # in the norm of the gradients before
    expected = [0.0, centers[0] - 1 / u[1], centers[1] + 0.5 / u[2]]
    assert x == pytest.approx(expected, abs=1e-14)


def test_newton_steps_in_two_dimensions_are_projected_in_their_norm():
    domain = box(-np.ones(2), np.ones(2))
    learner = vectorized(newton_pool(domain, np.ones(1), np.full(1, 2.0), optimistic=False), domain)
    g = np.array([1.0, -0.8])
    state = learner.observe(learner.init(np.array([-0.9, 0.5])), g)
    u = np.eye(2) + 2 * np.outer(g, g)
    free = np.array([-0.9, 0.5]) - np.linalg.solve(u, g)
    assert free[0] < -1
    # x_1 = -1, and x_2 has no slope: U_21 (x_1 - y_1) + U_22 (x_2 - y_2) = 0.
    second = free[1] - u[1, 0] * (-1 - free[0]) / u[1, 1]
    assert learner.act(state) == pytest.approx(np.array([-1.0, second]), abs=1e-14)


# --- Inverses --------------------------------------------------------------------------------


def test_the_inverse_is_that_of_the_matrix_after_ten_thousand_rounds():
    domain = ball(10, 1.0)
    pool = newton_pool(domain, np.array([0.5, 5.0]), np.array([1.0, 0.1]), optimistic=False)
    for stream in ["noise", "always the same", "one coordinate"]:
        with entry(stream):
            given, state = adversaries(10, 1.0)[stream], pool.init(np.zeros(10))
            for t in range(10_000):
                state = pool.observe(state, np.tile(given(t % 5000, state.centers[0]), (2, 1)))
            for metric, inverse in zip(state.metrics, state.inverses, strict=True):
                exact = np.linalg.inv(metric)
                assert np.max(np.abs(inverse - exact)) <= 1e-8 * np.max(np.abs(exact))
                assert (inverse == inverse.T).all()
                assert np.max(np.abs(metric)) > 50


# --- What is refused -------------------------------------------------------------------------

G = {"gradient_bound": 1.0}


def test_what_cannot_be_is_refused():
    for make, told in [
        (lambda d: ogd(d, gradient_bound=0.0), "gradient_bound must be finite and positive, got 0"),
        (lambda d: ogd(d, gradient_bound=np.inf), "gradient_bound must be finite"),
        (lambda d: optimistic_ogd(d, **G, smoothness=0.0), "smoothness must be finite"),
        (
            lambda d: optimistic_ogd(d, **G, smoothness=1.0, strong_convexity=1.5),
            r"strong_convexity must be in \[0, smoothness = 1\], got 1.5",
        ),
        (
            lambda d: optimistic_ogd(d, **G, smoothness=1.0, strong_convexity=np.nan),
            "strong_convexity must be in",
        ),
        (
            lambda d: online_newton_step(d, **G, exp_concavity=-1.0),
            "exp_concavity must be finite and positive, got -1.0",
        ),
        (
            lambda d: optimistic_newton(d, **G, smoothness=1.0, exp_concavity=np.nan),
            "exp_concavity must be finite and positive, got nan",
        ),
    ]:
        with entry(make, told), pytest.raises(ValueError, match=told):
            make(ball(2, 1.0))
