"""Meta-Ban: groups by their definition, and all of it against the plain one."""

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch

from engram.bandits.meta_ban import meta_ban
from engram.bandits.policy import INIT, UPDATE, single_run
from engram.bandits.versioned_tensor import initial_stack
from tests.bandits.neural_support import (
    Fixed,
    generators,
    played,
    played_plainly,
    rounds,
    with_parts,
)
from tests.bandits.plain_meta_ban import PlainMetaBan

MODES = {
    "exploration": ("gradient-norm", "paper"),
    "theta": ("last", "draw"),
    "meta_gradient": ("adapt", "eq6", "alg4"),
    "user_start": ("own", "meta"),
}
SETTINGS = {
    "alpha": 0.3,
    "nu": 2.0,
    "gamma": 0.4,
    "lam": 0.05,
    "eta_user": 0.3,
    "eta_meta": 0.05,  # a sum over rows in Algorithm 4 wants a small one
    "adapt_every": 1,
    "group_cap": None,
    "own_weight": 1.0,
    "user_steps": 2,
    "meta_steps": 2,
    "batch": 4,
    "buffer": 6,
}


def assert_same(found, expected, run=0):
    """Compares a run's networks with those of a plain policy."""
    users = len(expected.users)
    for layer in range(len(expected.start)):
        pairs = [(found.meta.theta[layer][run], expected.meta[layer])]
        for u in range(users):
            pairs += [
                (found.site.lasts[layer].read()[run, u], expected.users[u]["last"][layer]),
                (found.site.thetas[layer].read()[run, u], expected.users[u]["theta"][layer]),
            ]
        for a, b in pairs:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert found.known[run] == users
    assert found.site.rows.seen[run, :users].tolist() == [user["mu"] for user in expected.users]


def against_the_plain_one(horizon, seed, **settings):
    settings = {name: modes[0] for name, modes in MODES.items()} | SETTINGS | settings
    policy = meta_ban(4, hidden=(5, 4), dtype=torch.float64, **settings)
    state = policy.init(generators([seed], 0, INIT))
    plain = PlainMetaBan([w[0] for w in state.meta.start], **settings)
    environment = rounds(seed, horizon)
    chosen, state = played(policy.batched, [environment], [seed], state)
    assert chosen[:, 0].tolist() == played_plainly(plain, environment, seed).tolist()
    assert len(np.unique(chosen)) == 3
    assert_same(state, plain)


# Every other one: each choice with each choice of every other mode.
HALF = [
    tuple(modes[i] for modes, i in zip(MODES.values(), at, strict=True))
    for at in itertools.product(*map(range, map(len, MODES.values())))
    if sum(at) % 2 == 0
]


@pytest.mark.parametrize("mode", HALF, ids="-".join)
def test_it_is_the_plain_one_in_every_mode(mode):
    varied = {"adapt_every": 2, "group_cap": 3, "own_weight": 2.5}
    against_the_plain_one(30, 1, **dict(zip(MODES, mode, strict=True)), **varied)


@pytest.mark.parametrize(
    "settings",
    [
        {"eta_meta": 0.4, "exploration": "paper", "theta": "draw"},
        {"eta_meta": 0.4, "group_cap": 4, "own_weight": 3.0, "lam": 0.0, "buffer": 17},
        {"eta_meta": 0.1, "meta_gradient": "eq6", "user_start": "meta", "adapt_every": 3},
        {"eta_meta": 0.02, "meta_gradient": "alg4", "theta": "draw", "buffer": 3},
    ],
    ids=["paper's exploration", "cap and weight", "eq6", "alg4"],
)
def test_it_is_the_plain_one_for_long(settings):
    against_the_plain_one(100, 2, **settings)


def test_a_run_that_diverges_leaves_the_others_alone():
    environments = [rounds(6, 40), rounds(7, 40)]
    huge = [asked._replace(arms=1e6 * asked.arms) for asked in rounds(8, 40)]
    three = meta_ban(4, runs=3, hidden=(5,), group_cap=4)
    start = three.init(generators((0, 1, 2), 0, INIT))
    together, state = played(
        three.batched, [environments[0], huge, environments[1]], (0, 1, 2), start
    )
    assert not all(w[1].isfinite().all() for w in state.meta.theta)
    two = meta_ban(4, runs=2, hidden=(5,), group_cap=4)
    start = two.init(generators((0, 2), 0, INIT))
    alone, ended = played(two.batched, environments, (0, 2), start)
    assert together[:, [0, 2]].tolist() == alone.tolist()
    for a, b in zip(state.meta.theta, ended.meta.theta, strict=True):
        torch.testing.assert_close(a[[0, 2]], b)


def test_theta_is_any_of_a_user_s_past_parameters_alike():
    # In 4000 runs, after each of 4 updates: theta is theta-hat_k with probability 1 / (mu + 1).
    runs, updates = 4000, 4
    policy = meta_ban(1, runs=runs, hidden=(1,), theta="draw", batch=1, user_steps=1, eta_user=0.1)
    state = policy.init([np.random.default_rng(run) for run in range(runs)])
    w = torch.linspace(0.5, 1.0, runs)[:, None, None]  # which all have somewhere to go
    stacks = {"thetas": initial_stack((w, w), 8), "lasts": initial_stack((w, w), 8)}
    state = with_parts(state, start=(w, w), theta=(w, w), **stacks)
    past = [w[:, 0, 0].clone()]
    for mu in range(1, updates + 1):
        ones, none = np.ones((runs, 1)), np.zeros(runs)
        rngs = generators(range(runs), mu, UPDATE)
        state = policy.update(state, np.zeros(runs, dtype=int), ones, none, rngs)
        past.append(state.site.lasts[1].read()[:, 0, 0, 0].clone())
        theta = state.site.thetas[1].read()[:, 0, 0, 0]
        counts = [(theta == hat).sum().item() for hat in past]
        assert sum(counts) == runs
        expected = runs / (mu + 1)
        assert np.abs(np.array(counts) - expected).max() < 4 * (expected * mu / (mu + 1)) ** 0.5


# States


KEPT = (lambda state: state, copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state)))


@pytest.mark.parametrize(
    ("meta_gradient", "theta", "kept"),
    [("adapt", "last", KEPT[0]), ("eq6", "draw", KEPT[1]), ("alg4", "last", KEPT[2])],
)
def test_an_old_state_still_gives_the_same_after_new_ones_were_made(meta_gradient, theta, kept):
    single = single_run(
        meta_ban(4, hidden=(5,), meta_gradient=meta_gradient, theta=theta, eta_meta=0.02).batched
    )
    environment = rounds(9, 40)

    def go_on(state, begin, end, seed):
        arms = []
        for t in range(begin, end):
            asked = environment[t]
            choose, update = (np.random.default_rng((seed, t, part)) for part in range(2))
            arm, state = single.choose(state, asked.user, asked.arms, choose)
            state = single.update(state, asked.user, asked.arms[arm], asked.rewards[arm], update)
            arms.append(arm)
        return arms, [w.clone() for w in state.meta.theta], state

    old = go_on(single.init(np.random.default_rng(0)), 0, 15, 0)[-1]
    saved = kept(old)
    arms, meta, new = go_on(old, 15, 40, 1)
    other_arms, other_meta, _ = go_on(old, 15, 40, 2)  # a branch
    go_on(new, 20, 30, 3)
    assert any(not torch.equal(a, b) for a, b in zip(meta, other_meta, strict=True))
    for state, expected, numbers, seed in (
        (saved, arms, meta, 1),
        (old, other_arms, other_meta, 2),
        (old, arms, meta, 1),
    ):
        again, weights, _ = go_on(state, 15, 40, seed)
        assert again == expected
        assert all(torch.equal(a, b) for a, b in zip(weights, numbers, strict=True))


def test_a_user_who_comes_late_is_met_as_if_there_had_been_room():
    policy = meta_ban(4, hidden=(5,))
    state = policy.init(generators([0], 0, INIT))
    _, state = played(policy.batched, [rounds(3, 20)], [0], state)
    roomy = policy.update(state, np.array([30]), np.zeros((1, 4)), np.zeros(1), [Fixed()])
    rows = roomy.site.rows._replace(
        seen=roomy.site.rows.seen * (np.arange(roomy.site.rows.seen.shape[1]) != 30)
    )
    roomy = with_parts(roomy, known=state.known, rows=rows)
    late = [asked._replace(user=30 - asked.user) for asked in rounds(4, 20)]
    chosen, ended = played(policy.batched, [late], [1], state)
    expected, other = played(policy.batched, [late], [1], roomy)
    assert chosen.tolist() == expected.tolist()
    assert ended.known.tolist() == other.known.tolist() == [31]
    for a, b in zip(ended.meta.theta, other.meta.theta, strict=True):
        torch.testing.assert_close(a, b)
