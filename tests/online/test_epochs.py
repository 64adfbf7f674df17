"""Learners that know no bound on gradients."""

import numpy as np
import pytest

from engram.online.baselines import metagrad
from engram.online.domains import ball
from engram.online.server_step import in_epochs
from tests.online.support import adversaries

BALL = ball(3, 1.5, np.array([0.3, -0.2, 0.1]))
BOUND = 2.0
NOISE = [adversaries(3, BOUND)["noise"](t, None) for t in range(64)]


def epochs():
    return in_epochs(
        lambda horizon, bound: metagrad(BALL, gradient_bound=bound, horizon=horizon), 64
    )


def played(learner, state, gradients):
    for g in gradients:
        state = learner.observe(state, g)
    return state


def test_epochs_double_the_bound():
    learner, g = epochs(), np.array([0.3, -0.4, 1.2])
    state, length = played(learner, learner.init(None), [np.zeros(3)] * 5), 1.3
    assert (state.bound, state.rounds, state.number) == (0.0, 0, 1)  # it knows no scale yet
    state = played(learner, state, [g])
    assert (state.bound, state.horizon, state.rounds) == (pytest.approx(2 * length), 64, 1)
    state = played(learner, state, [3 * g])
    assert (state.bound, state.horizon, state.rounds) == (pytest.approx(6 * length), 64, 1)
    last = played(learner, state, [g / 9] * 70)
    assert (last.horizon, last.rounds, last.number) == (64, 71, 2)


def test_epochs_go_on_from_where_they_had_come_to():
    learner, g = epochs(), np.array([0.0, 0.0, 1.0])
    state = played(learner, learner.init(None), [*NOISE, 9 * g])
    plain = metagrad(BALL, gradient_bound=18.0, horizon=64)
    begun = plain.init(learner.act(played(learner, learner.init(None), NOISE)))
    assert state.number == 2
    assert learner.act(state) == pytest.approx(plain.act(plain.observe(begun, 9 * g)), abs=1e-14)
