"""Algorithms 2, 3 and 4, step by step on networks of two weights."""

import numpy as np
import torch

from engram.bandits.meta_ban import meta_ban
from engram.bandits.replay import add
from engram.bandits.versioned_tensor import initial_stack, scatter
from tests.bandits.neural_support import Fixed, with_parts
from tests.samples import entry


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


# Algorithms by hand: f(x) = v relu(w x), so the gradient of 1/2 (f - r)^2 is
# (f - r) (v x, w x) where w x > 0.

ONE = np.array([0])
ARM = np.array([[[1.0]]])


def weights_of(stack, user):
    return [kept.read()[0, user].item() for kept in stack]


def test_algorithm_3_by_hand():
    # From (w, v) = (1, 1/2) with the row (1, 1) and eta_1 = 1/2:
    # f - r = -1/2: (1, 1/2) - 1/2 (-1/4, -1/2) = (9/8, 3/4)
    # f - r = 27/32 - 1 = -5/32: (9/8, 3/4) + 5/64 (3/4, 9/8) = (303/256, 429/512)
    policy, state = hand_made(
        [(1.0, 2.0), (1.0, 0.5), (3.0, 4.0)], [[], []], eta_user=0.5, user_steps=2, batch=1
    )
    new = policy.update(state, ONE, ARM[0], np.array([1.0]), [Fixed([[0.3], [0.9]])])
    assert weights_of(new.site.lasts, 0) == [303 / 256, 429 / 512]
    assert weights_of(new.site.thetas, 0) == [303 / 256, 429 / 512]
    assert weights_of(new.site.lasts, 1) == [3, 4]
    assert new.site.rows.seen[0, :2].tolist() == [1, 0]
    assert weights_of(state.site.lasts, 0) == [1, 0.5]


def test_algorithm_2_by_hand():
    # Users at (1, 1/2) with the row (1, 1), and at (2, 1/4) with (1, 0), agree on x = 1. Gradients
    # are (-1/4, -1/2) and (1/8, 1); with lam / m^1/2 sign = 1/4: (0, -1/4) and (3/8, 5/4). With
    # w = 3 and 1 their mean is (3/32, 1/8): twice, times eta_2 = 1/2, from Theta = (1, 1).
    steps = {"eta_meta": 0.5, "meta_steps": 2, "batch": 1, "meta_gradient": "eq6"}
    thetas, rows = [(1.0, 1.0), (1.0, 0.5), (2.0, 0.25)], [[(1, 1)], [(1, 0)]]
    policy, state = hand_made(thetas, rows, lam=0.25, own_weight=3.0, **steps)
    _, new = policy.choose(state, ONE, ARM, [Fixed([[0.5], [0.5]])])
    assert [w.item() for w in new.meta.theta] == [1 - 3 / 32, 1 - 1 / 8]
    assert [w.item() for w in state.meta.theta] == [1, 1]


def test_algorithm_4_by_hand():
    # As above, and user 1 also has (2, 1/2): f = 1, so its gradient is 1/2 (1/4 * 2, 2 * 2). Of
    # the 3 rows those of Theta_(0), Theta_(1), Theta_(2) are taken, and never the last one.
    for uniform, steps in [(0.0, 0), (0.33, 0), (0.34, 1), (0.66, 1), (0.67, 2), (0.999, 2)]:
        with entry(uniform, steps):
            thetas, rows = [(1.0, 1.0), (1.0, 0.5), (2.0, 0.25)], [[(1, 1)], [(1, 0), (2, 0.5)]]
            policy, state = hand_made(thetas, rows, eta_meta=0.5, meta_gradient="alg4")
            _, new = policy.choose(state, ONE, ARM, [Fixed(uniform)])
            gradients = [(-1 / 4, -1 / 2), (1 / 8, 1)][:steps]
            expected = [1 - 0.5 * sum(part) for part in zip((0, 0), *gradients, strict=True)]
            assert [w.item() for w in new.meta.theta] == expected


def test_adapting_by_hand():
    # At Theta = (1, 1/2): of (1, 1) the gradient is (-1/4, -1/2), of (1, 1/4) it is (1/8, 1/4).
    # The mean is (-1/16, -1/8), with lam sign = 1/4 (3/16, 1/8); eta_2 = 1.
    thetas, rows = [(1.0, 0.5), (1.0, 0.5), (2.0, 0.25)], [[(1, 1)], [(1, 0.25)]]
    policy, state = hand_made(thetas, rows, lam=0.25, eta_meta=1.0, batch=2)
    _, new = policy.choose(state, ONE, ARM, [Fixed([[0.2, 0.7]])])
    assert [w.item() for w in new.meta.theta] == [1 - 3 / 16, 1 / 2 - 1 / 8]
    # With w = 3 for the user served, 0.7 draws its row too: (-1/4, -1/2) + 1/4 = (0, -1/4).
    heavier = policy._replace(learner=policy.learner._replace(own_weight=3.0))
    _, new = heavier.choose(state, ONE, ARM, [Fixed([[0.2, 0.7]])])
    assert [w.item() for w in new.meta.theta] == [1, 3 / 4]
