"""Meta-Ban: groups by their definition, and all of it against the plain one."""

import itertools

import numpy as np
import pytest
import torch

from engram.bandits.meta_ban import meta_ban
from engram.bandits.policy import INIT, UPDATE
from engram.bandits.versioned_tensor import initial_stack
from tests.bandits.neural_support import generators, played, played_plainly, rounds, with_parts
from tests.bandits.plain_meta_ban import PlainMetaBan

MODES = {
    "exploration": ("gradient-norm", "paper"),
    "theta": ("last", "draw"),
    "meta_gradient": ("adapt", "eq6", "alg4"),
    "user_start": ("own", "meta"),
}
SETTINGS = {"alpha": 0.3, "nu": 2.0, "gamma": 0.4, "lam": 0.05, "eta_user": 0.3, "adapt_every": 1}
SETTINGS |= {"group_cap": None, "own_weight": 1.0, "user_steps": 2, "meta_steps": 2}
SETTINGS |= {"batch": 4, "buffer": 6}
DOUBLE = {"hidden": (5, 4), "dtype": torch.float64}


# Every other one: each choice with each choice of every other mode.
HALF = [
    tuple(modes[i] for modes, i in zip(MODES.values(), at, strict=True))
    for at in itertools.product(*map(range, map(len, MODES.values())))
    if sum(at) % 2 == 0
]
VARIED = (
    {"adapt_every": 2, "group_cap": 3, "own_weight": 2.5},
    {"group_cap": 4, "own_weight": 3.0, "lam": 0.0, "buffer": 17},
    {"adapt_every": 3, "buffer": 3},
)


@pytest.mark.parametrize("mode", HALF, ids="-".join)
def test_it_is_the_plain_one_in_every_mode(mode):
    block, way = divmod(HALF.index(mode), 3)
    settings = dict(zip(MODES, mode, strict=True)) | SETTINGS | VARIED[(block + way) % 3]
    settings["eta_meta"] = 0.02 if "alg4" in mode else 0.2  # the former for a sum over rows
    policy, environment, seed = meta_ban(4, **settings, **DOUBLE), rounds(1, 50), 1
    state = policy.init(generators([seed], 0, INIT))
    plain = PlainMetaBan([w[0] for w in state.meta.start], **settings)
    chosen, state = played(policy.batched, [environment], [seed], state)
    assert chosen[:, 0].tolist() == played_plainly(plain, environment, seed).tolist()
    assert len(np.unique(chosen)) == 3
    users = len(plain.users)
    assert state.known.tolist() == [users]
    assert state.site.rows.seen[0, :users].tolist() == [user["mu"] for user in plain.users]
    for layer, theta in enumerate(plain.meta):
        pairs = [(state.meta.theta[layer][0], theta)]
        for name, stacks in (("last", state.site.lasts), ("theta", state.site.thetas)):
            own = stacks[layer].read()[0]
            pairs += [(own[u], user[name][layer]) for u, user in enumerate(plain.users)]
        for found, expected in pairs:
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


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
