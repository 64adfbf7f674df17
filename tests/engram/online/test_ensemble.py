"""Ensembles of learners: their members weighed by experts, and members themselves."""

import numpy as np
import pytest

from engram.online.descent import ogd
from engram.online.domains import ball
from engram.online.ensemble import ensemble
from engram.online.experts import adapt_ml_prod, hedge, msmwc
from engram.online.newton import online_newton_step
from engram.online.universal import universal_ensemble
from tests.engram.online.support import adversaries, play

BALL = ball(3, 1.0)
MEMBERS = [
    ogd(BALL, gradient_bound=2.0),
    online_newton_step(BALL, gradient_bound=2.0, exp_concavity=0.5),
    ogd(BALL, gradient_bound=2.0, step=lambda t: 0.05),
]


def test_an_ensemble_is_its_members_weighed_by_experts():
    meta = adapt_ml_prod(3, loss_range=4.0)
    x, g = play(ensemble(meta, MEMBERS), adversaries(3, 2.0)["away from the middle"], 30)
    apart = np.array([play(member, lambda t, x: g[t], 30)[0] for member in MEMBERS])
    losses = np.einsum("ntd,td->tn", apart, g)
    p, _ = play(meta, lambda t, p: losses[t], 30)
    assert x == pytest.approx(np.einsum("tn,ntd->td", p, apart), abs=1e-13)
    assert np.ptp(apart[:, -1], axis=0).max() > 0.1


def test_equal_members_are_their_ensemble():
    stream = adversaries(3, 2.0)["noise"]
    x, _ = play(ensemble(hedge(2, horizon=9, loss_range=4.0), [MEMBERS[0]] * 2), stream, 40)
    assert x == pytest.approx(play(MEMBERS[0], stream, 40)[0], abs=1e-14)


def test_ensembles_in_ensembles_and_members_that_want_many_gradients():
    many = universal_ensemble(BALL, gradient_bound=2.0, horizon=30, feedback="multi-gradient")
    inner = ensemble(hedge(2, horizon=30, loss_range=4.0), [many, MEMBERS[1]])
    outer = ensemble(msmwc(2, 0.2, loss_range=4.0), [inner, MEMBERS[0]])
    x, g = play(outer, adversaries(3, 2.0)["always the same"], 30)
    assert x[-1] == pytest.approx(-g[0] / 2, abs=0.2)


@pytest.mark.parametrize(
    ("members", "told"),
    [
        (MEMBERS[:2], "members must be 3, meta's experts, got 2"),
        ([*MEMBERS[:2], ogd(ball(2, 1.0), gradient_bound=1.0)], "members' dimensions must be the"),
    ],
)
def test_members_that_do_not_fit_are_refused(members, told):
    with pytest.raises(ValueError, match=told):
        ensemble(adapt_ml_prod(3), members)
