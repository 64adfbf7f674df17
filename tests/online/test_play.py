"""Playing: what is asked and told, in which order, and regret by hand."""

import numpy as np
import pytest

from engram.online import loss_streams
from engram.online.descent import ogd
from engram.online.learner import Learner
from engram.online.play import (
    game_regrets,
    least_totals,
    log_spaced,
    matrix_game,
    play_game,
    play_stream,
    regrets,
    saddle_game,
)
from tests.samples import entry


def constant(x):
    """A learner that stays where it is, and remembers what it was told."""
    x = np.asarray(x, dtype=np.float64)
    return Learner(
        dim=len(x),
        init=lambda start: (),
        act=lambda state: x,
        observe=lambda state, g: (*state, g),
        points=lambda state: x[None],
    )


# --- Streams ---------------------------------------------------------------------------------


def test_a_learner_is_told_the_gradient_at_its_decision_once_a_round():
    stream, told = loss_streams.squared(np.random.default_rng(0), 30, 4), []
    learner = ogd(stream.domain, gradient_bound=stream.gradient_bound)
    spy = learner._replace(observe=lambda s, g: (told.append(g), learner.observe(s, g))[1])
    played = play_stream(spy, stream)
    assert played.points.shape == (30, 1, 4)
    state = learner.init(None)
    for t, gradient in enumerate(told, start=1):
        x = learner.act(state)
        np.testing.assert_array_equal(played.points[t - 1, 0], x)
        np.testing.assert_array_equal(gradient, stream.gradient(t, x[None])[0])
        state = learner.observe(state, gradient)


def test_regret_by_hand():
    # f_t = <c_t, x> on the unit ball: sums of c are (1, 0), (1, 1), (2, 1), and min is -|sum|.
    stream = loss_streams.linear(np.random.default_rng(0), 3, 2)
    stream = stream._replace(tilts=np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]))
    decisions = np.array([[0.5, 0.5], [0.0, -1.0], [0.25, 0.0]])
    # Losses 0.5, -1, 0.25: totals 0.5, -0.5, -0.25.
    rounds = np.array([1, 2, 3])
    least = least_totals(stream, rounds)
    np.testing.assert_allclose(least, [-1, -(2**0.5), -(5**0.5)], atol=1e-12)
    found = regrets(stream, decisions, rounds[::2], least[::2])
    np.testing.assert_allclose(found, [1.5, 5**0.5 - 0.25], atol=1e-12)


def test_log_spaced_rounds():
    for horizon in [1, 2, 9, 10, 1000, 12_345]:
        with entry(horizon):
            rounds = log_spaced(horizon)
            assert rounds[0] == 1
            assert rounds[-1] == horizon
            assert (np.diff(rounds) > 0).all()
            ratios = rounds[1:] / rounds[:-1]
            assert (ratios[rounds[1:] > 100] < 1.3).all()  # 10^(1/10) = 1.26


def test_no_rounds_are_refused():
    with pytest.raises(ValueError, match="horizon must be at least 1, got 0"):
        log_spaced(0)
    game = matrix_game(np.random.default_rng(0), 2)
    with pytest.raises(ValueError, match="rounds must be at least 1, got 0"):
        play_game(game, constant([1, 0]), None, 0)


# --- Games -----------------------------------------------------------------------------------

PENNIES = np.array([[1.0, -2.0], [-1.0, 1.0]])


def pennies():
    game = matrix_game(np.random.default_rng(0), 2)
    return game._replace(matrix=PENNIES, gradient_bound=5**0.5)


def test_regret_in_a_game_by_hand():
    # x plays rows 1, 1, 2 and y columns 1, 2, 2: x pays 1, -2, 1, together 0. Against y's counts
    # (1, 2) row 1 would pay 1 - 4 = -3, row 2 -1 + 2 = 1. Against x's counts (2, 1) column 1 would
    # get 2 - 1 = 1, column 2 -4 + 1 = -3.
    game, rounds = pennies(), np.array([3])
    xs, ys = np.eye(2)[[0, 0, 1]], np.eye(2)[[0, 1, 1]]
    assert game_regrets(game, xs, ys, rounds)[0] == pytest.approx(3.0)
    assert game_regrets(game.transposed(), ys, xs, rounds)[0] == pytest.approx(1.0)


def test_the_dishonest_answer_with_the_worst():
    # Against x = (1/4, 3/4): column 1 gets 1/4 - 3/4 < column 2's -2/4 + 3/4.
    xs, ys = play_game(pennies(), constant([0.25, 0.75]), None, 4)
    np.testing.assert_array_equal(xs, np.full((4, 1, 2), [0.25, 0.75]))
    np.testing.assert_array_equal(ys, np.full((4, 1, 2), [0.0, 1.0]))


def test_the_honest_choose_at_the_same_time():
    game = saddle_game(np.random.default_rng(2), 3)
    transposed = game.transposed()
    one, two = (ogd(g.domain, gradient_bound=g.gradient_bound) for g in (game, transposed))
    xs, ys = play_game(game, one, two, 20)
    state, theirs = one.init(None), two.init(None)
    for t in range(20):
        x, y = one.act(state), two.act(theirs)
        np.testing.assert_array_equal(xs[t, 0], x)
        np.testing.assert_array_equal(ys[t, 0], y)
        state = one.observe(state, game.matrix @ y + game.linear)
        theirs = two.observe(theirs, -game.matrix.T @ x + game.other_linear)
