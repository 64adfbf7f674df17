"""Streams of losses and games: gradients, bounds, and the best decision in hindsight."""

from functools import partial
from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog

from engram.online import loss_streams
from engram.online.loss_streams import Total, least_on_ball, least_quadratic
from engram.online.play import game_regrets, matrix_game, saddle_game
from tests.samples import entry

STREAMS = {
    "strongly convex": loss_streams.strongly_convex,
    "absolute": loss_streams.absolute,
    "logistic": loss_streams.logistic,
    "short logistic": partial(loss_streams.logistic, length=2.0),
    "squared": loss_streams.squared,
    "linear": loss_streams.linear,
    "fixed": loss_streams.fixed,
    "drifting": loss_streams.drifting,
    "sea": partial(loss_streams.drifting, noise=0.5),
}
LONG = ("rows", "targets", "tilts")  # what a stream has of each round
GAMES = {
    "bilinear": saddle_game,
    "curved": partial(saddle_game, curvature=0.7),
    "matrix": matrix_game,
}


def draw(name, horizon=400, dim=6, seed=0):
    return STREAMS[name](np.random.default_rng(seed), horizon, dim)


def inside(count, dim=6, seed=1):
    """Points of the unit ball, half of them on the sphere."""
    rng = np.random.default_rng(seed)
    points = loss_streams.directions(rng, count, dim)
    points[::2] *= rng.random((len(points[::2]), 1))
    return points


def differences(function, x, step=1e-6):
    rows = step * np.eye(len(x))
    return np.array([(function(x + row) - function(x - row)) / (2 * step) for row in rows])


# --- Streams ---------------------------------------------------------------------------------


def test_gradients_are_those_of_the_losses():
    for name in STREAMS:
        with entry(name):
            stream = draw(name)
            for t, x in zip((1, 5, 400), inside(3), strict=True):
                parts = {name: getattr(stream, name)[t - 1 : t] for name in LONG}
                one = stream._replace(**parts)
                found = stream.gradient(t, np.stack([x, -x]))
                for point, gradient in zip((x, -x), found, strict=True):
                    linear = differences(lambda y, one=one: one.losses(y)[0], point)
                    np.testing.assert_allclose(gradient, linear, atol=1e-6)


def test_the_bounds_hold_and_g_is_tight():
    for name in STREAMS:
        with entry(name):
            stream, points = draw(name), inside(60)
            longest = steepest = 0.0
            for t in range(1, stream.horizon + 1):
                gradients = stream.gradient(t, points)
                longest = max(longest, np.linalg.norm(gradients, axis=1).max())
                change = np.linalg.norm(gradients[1:] - gradients[:-1], axis=1)
                moved = np.linalg.norm(points[1:] - points[:-1], axis=1)
                steepest = max(steepest, (change / moved).max())
            assert longest <= stream.gradient_bound * (1 + 1e-12)
            assert longest >= 0.6 * stream.gradient_bound  # that few points show so much
            if stream.smoothness is not None:
                assert steepest <= stream.smoothness * (1 + 1e-12)


def test_streams_come_again_and_a_part_of_one_is_its_beginning():
    for name in STREAMS:
        with entry(name):
            one, two, other = draw(name), draw(name), draw(name, seed=1)
            x = inside(400)
            np.testing.assert_array_equal(one.losses(x), two.losses(x))
            assert not np.allclose(one.losses(x), other.losses(x))
            np.testing.assert_array_equal(one.first(17).losses(x[:17]), one.losses(x)[:17])
            assert one.first(17).horizon == 17


def test_losses_by_hand():
    # Up to the number |z|^2 / 2, which is no part of a loss here.
    stream, x = draw("strongly convex"), inside(1)[0]
    z = -stream.tilts
    expected = ((x - z) ** 2).sum(axis=1) / 2 - (z**2).sum(axis=1) / 2
    np.testing.assert_allclose(stream.losses(x), expected, atol=1e-12)
    stream = draw("absolute")
    np.testing.assert_allclose(stream.losses(x), np.abs(stream.rows @ x - stream.targets))
    stream = draw("logistic")
    odds = np.exp(-stream.targets * (stream.rows @ x))
    np.testing.assert_allclose(stream.losses(x), np.log(1 + odds))


def test_labels_follow_the_logistic_model():
    # With b = +-1, b a has mean E[(2 p - 1) a], along u; the best decision is near it.
    stream = loss_streams.logistic(np.random.default_rng(0), 40_000, 4)
    toward = (stream.targets[:, None] * stream.rows).mean(axis=0)
    best = stream.best().decision
    assert toward @ best / np.linalg.norm(toward) / np.linalg.norm(best) > 0.99
    assert np.linalg.norm(best) == pytest.approx(0.5, abs=0.05)


def test_drifting_losses_drift_and_noise_is_as_long_as_said():
    quiet, noisy = draw("drifting"), draw("sea")
    steps = np.linalg.norm(np.diff(quiet.rows, axis=0), axis=1)
    # The mean of (2 pi / period)^2 over 3 pairs is its square: periods of 200, 632.5 and 2000.
    speed = np.sqrt(np.mean((2 * np.pi / np.array([200, 200 * 10**0.5, 2000])) ** 2))
    np.testing.assert_allclose(steps, speed, rtol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(noisy.tilts, axis=1), 0.5)
    assert not quiet.tilts.any()
    # There is a decision without loss in any round, and losses are squares.
    assert quiet.best().total == pytest.approx(0.0, abs=1e-9)


def test_what_cannot_be_is_refused():
    for make, message in [
        (lambda rng: loss_streams.linear(rng, 0), "horizon must be at least 1, got 0"),
        (lambda rng: loss_streams.drifting(rng, 9, 3), "dim must be even, got 3"),
        (lambda rng: loss_streams.drifting(rng, 9, 4, -0.1), "noise must be at least 0, got -0.1"),
        (lambda rng: saddle_game(rng, 3, -1.0), "curvature must be at least 0, got -1.0"),
    ]:
        with entry(make), pytest.raises(ValueError, match=message):
            make(np.random.default_rng(0))


# --- Games -----------------------------------------------------------------------------------


def points_of(domain, count, seed):
    rng = np.random.default_rng(seed)
    return np.stack([domain.project(2 * row) for row in rng.standard_normal((count, domain.dim))])


def test_both_sides_see_the_same_game():
    for name, make in GAMES.items():
        with entry(name):
            check_both_sides(make(np.random.default_rng(0), 5))


def check_both_sides(game):
    transposed = game.transposed()
    xs, ys = points_of(game.domain, 40, 1), points_of(game.other, 40, 2)

    def payoff(x, y):
        own = game.curvature / 2 * x @ x + game.linear @ x + x @ game.matrix @ y
        return own - game.other_linear @ y - game.curvature / 2 * y @ y

    for x, y in zip(xs, ys, strict=True):
        linear = differences(lambda p, y=y: payoff(p, y), x)
        np.testing.assert_allclose(game.gradient(x[None], y[None])[0], linear, atol=1e-6)
        linear = differences(lambda p, x=x: -payoff(x, p), y)
        np.testing.assert_allclose(transposed.gradient(y[None], x[None])[0], linear, atol=1e-6)
    for side, own, theirs in ((game, xs, ys), (transposed, ys, xs)):
        lengths = np.linalg.norm(side.gradient(own, theirs), axis=1)
        assert lengths.max() <= side.gradient_bound * (1 + 1e-12)
    # Of each, what depends on its own choice: the difference from another choice.
    differ = game.losses(xs, ys) - game.losses(xs[::-1], ys)
    expected = [payoff(x, y) - payoff(z, y) for x, z, y in zip(xs, xs[::-1], ys, strict=True)]
    np.testing.assert_allclose(differ, expected, atol=1e-12)


def test_an_answer_is_the_best_there_is():
    for name, make in GAMES.items():
        game = make(np.random.default_rng(3), 5)
        ys, others = points_of(game.other, 8, 4), points_of(game.domain, 200, 5)
        for y, best in zip(ys, game.best_response(ys), strict=True):
            with entry(name, y):
                assert game.domain.contains(best)
                least = game.losses(others, np.tile(y, (200, 1))).min()
                assert game.losses(best[None], y[None])[0] <= least + 1e-12


def test_at_the_equilibrium_nobody_regrets():
    # Gradients vanish at (u, v): -A v - m u + A v + m u, and likewise for y. Both are found from
    # that: x = u solves [m, A; -A', m] (x, y) = (-b, -c).
    for curvature in [0.0, 0.7]:
        with entry(curvature):
            game = saddle_game(np.random.default_rng(6), 4, curvature)
            eye, a = curvature * np.eye(4), game.matrix
            system = np.block([[eye, a], [-a.T, eye]])
            solved = np.linalg.solve(system, -np.r_[game.linear, game.other_linear])
            assert np.linalg.norm(solved[:4]) == pytest.approx(0.5)
            assert np.linalg.norm(solved[4:]) == pytest.approx(0.5)
            xs, ys, last = np.tile(solved[:4], (9, 1)), np.tile(solved[4:], (9, 1)), np.array([9])
            assert game_regrets(game, xs, ys, last)[0] == pytest.approx(0.0, abs=1e-12)
            assert game_regrets(game.transposed(), ys, xs, last)[0] == pytest.approx(0.0, abs=1e-12)
            both = game_regrets(game, 0 * xs, ys, last)
            assert both[0] + game_regrets(game.transposed(), ys, 0 * xs, last)[0] > 0.1


# --- In hindsight: quadratics by hand, and streams -------------------------------------------


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
