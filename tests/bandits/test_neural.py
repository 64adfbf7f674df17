"""Neural UCB and Thompson sampling against their definitions, gradients by autograd."""

import numpy as np
import pytest
import torch

from engram.bandits.neural import neural_bandit
from engram.bandits.policy import CHOOSE, INIT, UPDATE, best, generator
from tests.bandits.neural_support import generators, rounds
from tests.bandits.plain_meta_ban import drawn, gradient, keep, loss, network, stepped

SETTINGS = {"alpha": 0.4, "lam": 0.3, "eta": 0.3, "steps": 2, "batch": 4, "buffer": 6}


class Plain:
    """One run, for users 0, 1, ..., one row at a time; networks are all users', or each one's."""

    def __init__(self, start, *, shared, thompson, **settings):
        self.start = [w.double() for w in start]
        self.shared, self.thompson, self.settings = shared, thompson, settings
        self.networks, self.diagonals, self.rows = {}, {}, {}

    def of(self, user):
        """Parameters, and the diagonal of Z, of who serves a user."""
        lam = self.settings["lam"]
        fresh = [torch.full_like(w, lam) for w in self.start]
        key = 0 if self.shared else user
        return key, self.networks.get(key, self.start), self.diagonals.get(key, fresh)

    def scores(self, user, arms, rng):
        _, theta, diagonal = self.of(user)
        normals = rng.normal(size=len(arms)) if self.thompson else np.ones(len(arms))
        for x, normal in zip(torch.from_numpy(arms), normals, strict=True):
            slope = gradient(theta, lambda w, x=x: network(w, x))
            m = self.start[-1].shape[1]
            pairs = zip(slope, diagonal, strict=True)
            width = sum(float((g**2 / z).sum()) for g, z in pairs) / m
            yield float(network(theta, x)) + self.settings["alpha"] * width**0.5 * normal

    def choose(self, user, arms, rng):
        return best(np.array(list(self.scores(user, arms, rng))), rng)

    def update(self, user, x, reward, rng):
        key, theta, diagonal = self.of(user)
        slope = gradient(theta, lambda w: network(w, torch.from_numpy(x)))
        m, s = self.start[-1].shape[1], self.settings
        self.diagonals[key] = [z + g**2 / m for g, z in zip(slope, diagonal, strict=True)]
        seen = self.rows.setdefault(user, [[], 0])
        keep(seen[0], seen[1], s["buffer"], x, reward)
        seen[1] += 1
        users = sorted(self.rows) if self.shared else [user]
        rows = {u: self.rows[u][0] for u in users}
        for uniforms in rng.random((s["steps"], s["batch"])):
            picked = drawn(rows, dict.fromkeys(users, 1.0), uniforms)
            theta = stepped(theta, gradient(theta, lambda w, r=picked: loss(w, r)), s["eta"])
        self.networks[key] = theta


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("thompson", [False, True])
def test_it_is_the_plain_one(shared, thompson):
    seed, kind = 3, {"shared": shared, "thompson": thompson}
    policy = neural_bandit(4, hidden=(5, 4), **SETTINGS, **kind)
    state = policy.init(generators([seed], 0, INIT))
    plain = Plain([w[0] for w in state.start], **SETTINGS, **kind)
    for t, asked in enumerate(rounds(seed, 80)):
        user, arms = np.array([asked.user]), asked.arms[None]
        chosen, state = policy.choose(state, user, arms, [generator(seed, t, CHOOSE)])
        assert chosen[0] == plain.choose(asked.user, asked.arms, generator(seed, t, CHOOSE))
        x, paid = asked.arms[chosen], asked.rewards[chosen]
        state = policy.update(state, user, x, paid, [generator(seed, t, UPDATE)])
        plain.update(asked.user, x[0], float(paid[0]), generator(seed, t, UPDATE))
    for key, theta in plain.networks.items():
        for layer, w in enumerate(theta):
            found, square = (part[layer].read()[0, key] for part in (state.thetas, state.squares))
            torch.testing.assert_close(found.double(), w, rtol=1e-3, atol=1e-3)
            expected = plain.diagonals[key][layer] - SETTINGS["lam"]
            torch.testing.assert_close(square.double(), expected, rtol=1e-3, atol=1e-3)
    assert len(plain.networks) == (1 if shared else 10)
