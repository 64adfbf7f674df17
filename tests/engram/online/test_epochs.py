"""Learners that are told too little: of gradients that are too long, and of unknown rounds."""

import numpy as np
import pytest

from engram.online.descent import ogd
from engram.online.domains import ball
from engram.online.doubling_trick import in_epochs
from engram.online.learner import clipped
from engram.online.metagrad import metagrad
from engram.online.universal import universal_ensemble
from tests.engram.online.support import adversaries
from tests.tables import entry

BALL = ball(3, 1.5, np.array([0.3, -0.2, 0.1]))
BOUND = 2.0
G = {"gradient_bound": BOUND}
NOISE = [adversaries(3, BOUND)["noise"](t, None) for t in range(64)]


def epochs(**known):
    return in_epochs(
        lambda horizon, bound: metagrad(BALL, gradient_bound=bound, horizon=horizon), **known
    )


def played(learner, state, gradients):
    for g in gradients:
        state = learner.observe(state, g)
    return state


def test_clipping_scales_and_counts():
    learner = clipped(ogd(BALL, **G), BOUND)
    plain = ogd(BALL, **G)
    state = learner.observe(learner.init(None), np.array([3.0, 0.0, 4.0]))
    by_hand = plain.observe(plain.init(None), np.array([1.2, 0.0, 1.6]))
    assert learner.act(state) == pytest.approx(plain.act(by_hand), abs=1e-15)
    assert state.times == 1
    assert learner.observe(state, np.array([0.0, 2.0, 0.0])).times == 1
    many = clipped(universal_ensemble(BALL, **G, horizon=4, feedback="multi-gradient"), BOUND)
    state = many.init(None)
    g = np.ones((len(many.points(state)), 3))
    g[2:5] *= 7
    assert many.observe(state, g).times == 3
    with pytest.raises(ValueError, match="bound must be finite and positive, got 0"):
        clipped(plain, 0.0)


def test_epochs_double():
    learner, g = epochs(), np.array([0.3, -0.4, 1.2])
    state, length = played(learner, learner.init(None), [np.zeros(3)] * 5), 1.3
    assert (state.bound, state.rounds, state.number) == (0.0, 0, 1)  # it knows no scale yet
    state = played(learner, state, [g])
    assert (state.bound, state.horizon, state.rounds) == (pytest.approx(2 * length), 64, 1)
    state = played(learner, state, [3 * g])
    assert (state.bound, state.horizon, state.rounds) == (pytest.approx(6 * length), 64, 1)
    assert state.number == 2
    x = learner.act(state)
    last = played(learner, state, [g / 9] * 62)
    assert (last.horizon, last.rounds, last.number) == (64, 63, 2)
    over = played(learner, last, [g / 9])
    assert (over.horizon, over.rounds, over.number) == (128, 0, 3)
    assert not np.allclose(x, learner.act(over))


def test_epochs_go_on_from_where_they_had_come_to():
    learner = epochs(gradient_bound=BOUND)
    plain = metagrad(BALL, **G, horizon=64)
    state, alone = learner.init(None), plain.init(None)
    state, alone = played(learner, state, NOISE), played(plain, alone, NOISE)
    assert state.number == 2
    assert learner.act(state) == pytest.approx(plain.act(alone), abs=1e-14)


def test_a_horizon_of_no_rounds_is_refused():
    for horizon in [0, -3]:
        with (
            entry(horizon),
            pytest.raises(ValueError, match=f"horizon must be at least 1, got {horizon}"),
        ):
            epochs(horizon=horizon)
