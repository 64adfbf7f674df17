"""Groups at their threshold, by hand on networks of two weights."""

import numpy as np
import torch

from engram.bandits.meta_ban import meta_ban
from engram.bandits.replay import add
from engram.bandits.versioned_tensor import initial_stack, scatter
from tests.bandits.neural_support import with_parts


def hand_made(weights, rows, **settings):
    """Meta-Ban with one feature and one hidden unit, f(x) = v relu(w x), with one run.

    Of ``weights`` (w, v), the first are of Theta, the others of each user, who has ``rows`` (x, r).
    """
    single = {"own_weight": 1.0, "meta_steps": 1}
    policy = meta_ban(1, hidden=(1,), **single | settings)
    state = policy.init([np.random.default_rng(0)])
    meta, *users = (tuple(torch.tensor([[[part]]]) for part in pair) for pair in weights)
    kept, thetas = state.site.rows, initial_stack(meta, 8)
    for user, pair in enumerate(users):
        thetas = scatter(thetas, np.array([user]), pair)
        for x, r in rows[user]:
            kept = add(kept, np.array([user]), np.array([[x]]), np.array([r]))
    parts = {"rows": kept, "known": np.array([len(users)])}
    return policy, with_parts(state, start=meta, theta=meta, thetas=thetas, lasts=thetas, **parts)


def test_a_gap_as_large_as_the_threshold_is_in():
    # (nu - 1) / nu gamma = 1/2 * 1/2; predictions on x = 1 are 1, 3/4, 1 + 5/16, and those on -1
    # all 0
    weights = [(1.0, 1.0), (1.0, 1.0), (1.0, 0.75), (1.0, 1.3125)]
    policy, state = hand_made(weights, [[]] * 3, nu=2.0, gamma=0.5)
    groups = policy.groups(state, np.array([0]), torch.tensor([[[1.0, -1.0, 2.0]]]))
    members = groups.members[groups.of_arms[0]][:, :3]
    assert members.tolist() == [[True, True, False], [True, True, True], [True, False, False]]
    assert not groups.members[:, 3:].any()  # who has not come is in none
