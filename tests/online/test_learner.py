"""What every learner must do, whatever it is made of."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engram.online.baselines import metagrad, usc
from engram.online.descent import ogd, online_newton_step, optimistic_newton, optimistic_ogd
from engram.online.domains import ball, box, simplex
from engram.online.experts import adapt_ml_prod, hedge, msmwc
from engram.online.server_step import in_epochs
from engram.online.state_arrays import from_arrays, to_arrays
from engram.online.universal import universal_ensemble
from tests.online.test_states import same

DIM, BOUND, ROUNDS = 3, 2.0, 40
G = {"gradient_bound": BOUND}
DOMAINS = {
    "ball": ball(DIM, 1.5, np.array([0.3, -0.2, 0.1])),
    "box": box(np.array([-1.0, 0.5, 0.0]), np.array([1.0, 0.5, 7.0])),  # flat in one direction
    "simplex": simplex(DIM),
}
MANY, SMOOTH = {"feedback": "multi-gradient"}, {"smoothness": 1.0}
CONVEX = G | {"horizon": ROUNDS, "exp_concave": False}


def epochs(make, domain):
    return in_epochs(
        lambda horizon, bound: make(domain, gradient_bound=bound, horizon=horizon), ROUNDS
    )


ANYWHERE = {
    "ogd": lambda d: ogd(d, **G),
    "ogd, strongly convex": lambda d: ogd(d, **G, step=lambda t: 1 / t),
    "optimistic ogd": lambda d: optimistic_ogd(d, **G, smoothness=1.0),
    "optimistic ogd, strongly convex": partial(optimistic_ogd, **G, **SMOOTH, strong_convexity=0.1),
    "online newton step": lambda d: online_newton_step(d, **G, exp_concavity=0.1),
    "optimistic newton": lambda d: optimistic_newton(d, **G, smoothness=1.0, exp_concavity=0.1),
    "usc": lambda d: usc(d, **G, horizon=ROUNDS),
    "metagrad": lambda d: metagrad(d, **G, horizon=ROUNDS),
    "universal": lambda d: universal_ensemble(d, **G, horizon=ROUNDS),
    "universal, theory": lambda d: universal_ensemble(d, **G, horizon=ROUNDS, constants="theory"),
    "universal, many gradients": lambda d: universal_ensemble(d, **G, horizon=ROUNDS, **MANY),
    "universal, not exp-concave": partial(universal_ensemble, **CONVEX),
    "universal, many, not exp-concave": partial(universal_ensemble, **CONVEX, **MANY),
    "universal in epochs": lambda d: epochs(universal_ensemble, d),
    "universal, many in epochs": lambda d: epochs(partial(universal_ensemble, **MANY), d),
}
EXPERTS = {
    "hedge": lambda d: hedge(d.dim, horizon=ROUNDS, loss_range=2 * BOUND),
    "adapt_ml_prod": lambda d: adapt_ml_prod(d.dim, loss_range=2 * BOUND),
    "msmwc": lambda d: msmwc(d.dim, 0.4, loss_range=2 * BOUND),
    "msmwc, not optimistic": lambda d: msmwc(d.dim, 0.4, optimistic=False, loss_range=2 * BOUND),
}
# Domains by turns, as all learners project alike; and all of them where a learner has several.
TABLE = [
    *((name, [*DOMAINS][i % len(DOMAINS)]) for i, name in enumerate(ANYWHERE)),
    *(("universal", domain) for domain in ("ball", "box")),
    *((name, "simplex") for name in EXPERTS),
]
every = pytest.mark.parametrize(("name", "where"), TABLE, ids=[" on ".join(row) for row in TABLE])


def made(name, where):
    return (ANYWHERE | EXPERTS)[name](DOMAINS[where])


def told(learner, state, g):
    """``g`` at its decision; where it wants more of them, others elsewhere, none longer."""
    points = learner.points(state)
    if len(points) == 1:
        return g
    signs = np.where(np.arange(len(points)) % 3, 1.0, -0.5)[:, None]
    return g * signs * signs[0]


def stream(seed, count=ROUNDS):
    g = np.random.default_rng(seed).normal(size=(count, DIM)) + np.array([0.5, -1, 0.2])
    return g * (BOUND / np.linalg.norm(g, axis=1).max())


def played(learner, state, gradients):
    for g in gradients:
        state = learner.observe(state, told(learner, state, g))
    return state


# --- Decisions -------------------------------------------------------------------------------


def weights_in(arrays):
    """All that is called weights in a state, and is an array of them."""
    return [value for name, value in arrays.items() if name.endswith("weights")]


ADVERSARY = st.lists(
    st.one_of(
        st.sampled_from([0.0, 1e-300, 1e-160, 1e-12]).map(lambda size: size * np.ones(DIM)),
        st.tuples(st.integers(0, DIM - 1), st.sampled_from([-1.0, 1.0])).map(
            lambda at: BOUND * at[1] * np.eye(DIM)[at[0]]
        ),
        st.integers(0, 99).map(lambda seed: stream(seed, 1)[0]),
        st.sampled_from([1.0, -1.0]).map(lambda sign: sign * BOUND / np.sqrt(DIM) * np.ones(DIM)),
    ),
    min_size=1,
    max_size=12,
)


@every
@settings(max_examples=8)
@given(ADVERSARY, st.integers(1, 8))
def test_decisions_stay_in_the_domain_and_weights_on_simplices(name, where, gradients, times):
    learner, domain = made(name, where), DOMAINS[where]
    state = learner.init(None)
    for g in gradients * times:
        x, points = learner.act(state), learner.points(state)
        assert x.shape == (DIM,)
        assert domain.contains(x, 1e-12)
        assert points[0].tolist() == x.tolist()
        assert all(domain.contains(point, 1e-12) for point in points)
        for weights in weights_in(to_arrays(state)):
            assert (weights >= 0).all()
            assert weights.sum(axis=-1) == pytest.approx(1, abs=1e-12)
        state = learner.observe(state, told(learner, state, g))
    assert all(np.isfinite(value).all() for value in to_arrays(state).values())


@pytest.mark.filterwarnings("error")
@every
def test_every_learner_meets_the_contract(name, where, tmp_path):
    check_all_begin_where_they_are_told_and_learn(name, where)
    check_a_state_is_saved_and_goes_on_bit_for_bit(name, where, tmp_path)
    check_a_state_is_never_changed(name, where)
    check_what_is_no_gradient_or_no_start_is_refused_and_changes_nothing(name, where)


def check_all_begin_where_they_are_told_and_learn(name, where):
    learner, domain = made(name, where), DOMAINS[where]
    assert learner.dim == DIM
    assert learner.act(learner.init(None)) == pytest.approx(domain.center, abs=1e-12)
    start = domain.project(domain.center + np.array([0.1, 0.3, -0.2]))
    assert learner.act(learner.init(start)) == pytest.approx(start, abs=1e-12)
    # One gradient, always: the decision goes down it.
    g = np.array([0.9, 0.0, -1.2])
    moved = learner.act(played(learner, learner.init(start), [g] * ROUNDS)) - start
    assert g @ moved < (-1e-7 if "theory" in name else -0.05)


# --- States ----------------------------------------------------------------------------------


def check_a_state_is_saved_and_goes_on_bit_for_bit(name, where, folder):
    learner, gradients = made(name, where), stream(seed=1, count=150)
    state = played(learner, learner.init(None), gradients[:75])
    np.savez(folder / "state.npz", **to_arrays(state))
    with np.load(folder / "state.npz") as saved:
        restored = from_arrays(learner.init(None), saved)
    assert type(restored) is type(state)
    same(to_arrays(restored), to_arrays(state))
    one, other = (played(learner, s, gradients[75:]) for s in (state, restored))
    same(to_arrays(one), to_arrays(other))
    anew = made(name, where)  # and by a learner made anew, as after a restart
    same(to_arrays(one), to_arrays(played(anew, restored, gradients[75:])))


def check_a_state_is_never_changed(name, where):
    learner = made(name, where)
    state = played(learner, learner.init(None), stream(seed=2)[:5])
    before = to_arrays(state)
    learner.act(state)[:] = np.nan  # what is given out is for the caller to keep
    g = told(learner, state, stream(seed=3)[0])
    one = to_arrays(learner.observe(state, g))
    same(before, to_arrays(state))
    same(one, to_arrays(learner.observe(state, g)))


def test_a_state_of_another_learner_is_refused():
    arrays = to_arrays(made("ogd", "ball").init(None))
    with pytest.raises(ValueError, match=r"a saved state's .* must be"):
        from_arrays(made("metagrad", "ball").init(None), arrays)


# --- Bad input -------------------------------------------------------------------------------

BAD = {
    "nan": (np.array([0.1, np.nan, 0.0]), "finite"),
    "inf": (np.array([0.1, -np.inf, 0.0]), "finite"),
    "beyond float64's range": (np.array([0.1, 1e200, 0.0]), "finite"),
    "another dimension": (np.ones(DIM + 1) / 9, "shape must be"),
    "a table": (np.ones((2, DIM)) / 9, "shape must be"),
    "one number": (np.array(0.1), "shape must be"),
    "too long": (np.array([0.0, 5.0, -5.0]), r"must be at most the declared .*= \d"),
}
STARTS = [np.full(DIM, 9.0), np.full(DIM, np.nan), np.full(DIM, np.inf), np.ones(DIM + 1)]


def check_what_is_no_gradient_or_no_start_is_refused_and_changes_nothing(name, where):
    learner = made(name, where)
    state = played(learner, learner.init(None), stream(seed=4)[:3])
    before, count = to_arrays(state), len(learner.points(state))
    for fault, (g, message) in BAD.items():
        given = np.tile(g, (count, 1)) if count > 1 and fault != "a table" else g
        if fault == "too long" and name.endswith("in epochs"):
            learner.observe(state, given)
        else:
            with pytest.raises(ValueError, match=message) as refusal:
                learner.observe(state, given)
            assert "\n" not in str(refusal.value)
        same(before, to_arrays(state))
    for start in STARTS:
        with pytest.raises(ValueError, match="start") as refusal:
            learner.init(start)
        assert "\n" not in str(refusal.value)
