"""The ensemble against Algorithm 1, its proof's constants, and what its theorems promise."""

from functools import partial
from itertools import product

import numpy as np
import pytest

from engram.online.baselines import metagrad, usc
from engram.online.domains import ball, box
from engram.online.universal import practical, theoretical, universal_ensemble
from engram.online.weights import curvatures
from tests.online.algorithm_1 import algorithm_1
from tests.online.support import play
from tests.samples import entry


def quadratics(dim, seed):
    """Gradients of |x - z_t|^2 / 2, at most 1 long; some pull out of the unit ball."""
    z = np.random.default_rng(seed).normal(size=(40, dim)) * 2

    def gradient(t, x):
        g = (x - z[t]) * np.linspace(0.3, 1, dim)
        return g / np.maximum(1, np.linalg.norm(g, axis=-1, keepdims=True))

    return gradient


@pytest.mark.parametrize("multi", [False, True])
def test_it_is_algorithm_1(multi):
    for horizon, exp_concave in [(8, True), (20, True), (20, False)]:
        with entry(horizon, exp_concave):
            dim, gradient = 3, quadratics(3, seed=horizon)
            learner = universal_ensemble(
                ball(dim, 1.0),
                gradient_bound=1.0,
                horizon=horizon,
                smoothness=1.0,
                feedback="multi-gradient" if multi else "one-gradient",
                exp_concave=exp_concave,
            )
            state = learner.init(None)
            told = algorithm_1(
                gradient, dim, horizon, multi=multi, exp_concave=exp_concave, rounds=20
            )
            moved = 0.0
            for t, x in enumerate(told):
                assert learner.act(state) == pytest.approx(x, abs=1e-10)
                g = gradient(t, learner.points(state))
                state = learner.observe(state, g if multi else g[0])
                moved += np.linalg.norm(learner.act(state) - x)
            assert moved > 0.5


def test_one_gradient_a_round_is_at_the_decision_and_many_are_one_for_each_base_learner():
    one = universal_ensemble(ball(3, 2.0), gradient_bound=1.0, horizon=100)
    state = one.observe(one.init(None), np.array([0.3, 0.5, -0.1]))
    assert one.points(state).tolist() == [one.act(state).tolist()]
    many = universal_ensemble(
        ball(3, 2.0), gradient_bound=1.0, horizon=100, feedback="multi-gradient"
    )
    points = many.points(many.init(np.array([0.1, 0.2, 0.3])))
    assert points.shape == (1 + 2 * 8 + 1, 3)
    assert points == pytest.approx(np.tile([0.1, 0.2, 0.3], (18, 1)))


def test_the_pool_of_curvatures():
    assert curvatures(8).tolist() == [1 / 8, 1 / 4, 1 / 2, 1]
    assert curvatures(1).tolist() == [1]
    pool = curvatures(16_000)
    assert len(pool) == 15  # and so N = 31
    assert (pool[0], pool[-1]) == (1 / 16_000, 1)
    assert pool[1:-1] == pytest.approx(2 * pool[:-2])


def test_units_do_not_matter():
    # The loss f(x) and 7 f((x - c) / 50): gradients 7 / 50 times as long.
    unit_ball, larger_ball = ball(4, 1.0), ball(4, 50.0, np.array([5.0, -3, 2, 900]))
    limits = -np.ones(4), np.array([1, 2, 3, 1.0])
    smooth = partial(universal_ensemble, smoothness=0.7), {"smoothness": 0.7 * 7 / 50**2}
    for (make, scaled_by), domain, larger in [
        (smooth, unit_ball, larger_ball),
        (smooth, box(*limits), box(*(50 * limit for limit in limits))),
        ((usc, {}), unit_ball, larger_ball),
    ]:
        with entry(make, domain):
            rng = np.random.default_rng(0)
            one = make(domain, gradient_bound=1.0, horizon=64)
            other = make(larger, gradient_bound=7 / 50, horizon=64, **scaled_by)
            state, scaled = one.init(None), other.init(None)
            offset = larger.center - 50 * domain.center
            for _ in range(64):
                x = one.act(state)
                assert other.act(scaled) == pytest.approx(offset + 50 * x, abs=1e-9 * 900)
                g = rng.normal(size=4)
                g *= 0.9 / np.linalg.norm(g)
                state, scaled = one.observe(state, g), other.observe(scaled, 7 / 50 * g)


def test_the_theorys_constants_are_the_least_that_the_proof_allows():
    for smoothness in [0.01, 1.0, 30.0]:
        with entry(smoothness):
            d, g = 2.0, 1.0
            c = theoretical(smoothness)
            g_sc = g + d
            c_2 = 4 * smoothness**2 + 32 * d**2 * g**2 * smoothness**2 + 8 * g**4
            c_3 = (4 + 4 * smoothness**2) * g_sc**2
            c_4 = 2 * d**2 * smoothness**2 + 2 * g**2 + 10 * d * smoothness**2
            first = [32 * c_3, 2 * c_4, 4 * c_2 / (8 * g**2 + c.lambda_2)]
            assert c.lambda_1 == pytest.approx(max(first))
            assert c.lambda_2 == 2 * c.lambda_1
            top = [1, 128, 8 * d, 8 * c.lambda_1 * d**2, 64 * d**2 * c_3, 4 * d**2 * c_4]
            top.append(8 * c_2 * d**2 / (8 * g**2 + c.lambda_2))
            assert c.c_0 == pytest.approx(max(top))
            # The last coefficients of C.2, for the three kinds of losses: none positive.
            assert c.lambda_2 + 64 * g_sc**2 - c.gamma_strong / 8 <= 1e-9 * c.gamma_strong
            assert c.lambda_2 + 16 * g**4 / c.gamma_exp - c.gamma_exp / 4 <= 0
            assert c.lambda_2 + 2 * g**2 - c.gamma_convex / 4 <= 1e-9 * c.gamma_convex
            # With the text's gamma for exp-concave losses it would be.
            text = 8 * g**2 + c.lambda_2
            assert c.lambda_2 + 16 * g**4 / text - text / 4 > 0


def test_theorys_constants_hardly_let_it_move_and_practical_ones_do():
    goal = np.array([0.5, -0.3])

    def distance(constants):
        learner = universal_ensemble(
            ball(2, 1.0), gradient_bound=2.0, horizon=500, constants=constants
        )
        return np.linalg.norm(play(learner, lambda t, x: x - goal, 500)[0][-1] - goal)

    assert distance("practical") < 1e-3
    assert distance("theory") > 0.3
    assert practical(1.0).c_0 < theoretical(1.0).c_0 / 100


def test_a_horizon_of_one_round():
    learner = universal_ensemble(ball(2, 1.0), gradient_bound=1.0, horizon=1)
    state = learner.init(None)
    assert state.mid_weights.shape == (1, 3)
    learner.observe(state, np.array([1.0, 0.0]))


REFUSED = [
    ({"horizon": 0}, "horizon must be at least 1, and finite, got 0"),
    ({"horizon": np.inf}, "horizon must be at least 1, and finite, got inf"),
    ({"feedback": "two"}, "feedback must be one-gradient or multi-gradient, got 'two'"),
    ({"constants": "proof"}, "constants must be practical or theory, got 'proof'"),
    ({"gradient_bound": 0.0}, "gradient_bound must be finite and positive, got 0.0"),
    ({"gradient_bound": np.nan}, "gradient_bound must be finite and positive, got nan"),
    ({"smoothness": -1.0}, "smoothness must be finite and positive, got -1.0"),
]


def test_what_cannot_be_is_refused():
    learners = {"universal": universal_ensemble, "usc": usc, "metagrad": metagrad}
    for (name, make), (options, told) in product(learners.items(), REFUSED):
        if name == "universal" or options.keys() <= {"horizon", "gradient_bound"}:
            with entry(name, options, told), pytest.raises(ValueError, match=told):
                make(ball(2, 1.0), **{"gradient_bound": 1.0, "horizon": 10, **options})
