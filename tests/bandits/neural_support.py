"""What tests of neural policies share: users who come one after the other, and what they expect."""

from typing import NamedTuple

import numpy as np

from engram.bandits.policy import CHOOSE, UPDATE, generator


class Asked(NamedTuple):
    """User ``user`` is offered ``arms``, and would pay ``rewards`` for them."""

    user: int
    arms: np.ndarray
    rewards: np.ndarray


def rounds(seed, horizon, *, users=10, dim=4, arms=3):
    """Ever more users, in two groups with opposite rewards; arms have norm 1."""
    rng = np.random.default_rng(seed)
    way = rng.normal(size=dim)
    made = []
    for t in range(horizon):
        user = int(rng.integers(1 + t * users // horizon))
        x = rng.normal(size=(arms, dim))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        mean = 0.5 + 0.4 * np.tanh(x @ way) * (1 if user % 2 else -1)
        made.append(Asked(user, x, np.clip(mean + 0.05 * rng.normal(size=arms), 0, 1)))
    return made


def generators(seeds, t, purpose):
    return [generator(seed, t, purpose) for seed in seeds]


def played(runs, environments, seeds, state):
    """Plays as many runs as environments at once. Returns arms (T, R), and the last state."""
    chosen = []
    for t, asked in enumerate(zip(*environments, strict=True)):
        users = np.array([each.user for each in asked])
        offered = np.stack([each.arms for each in asked])
        arms, state = runs.choose(state, users, offered, generators(seeds, t, CHOOSE))
        x = np.stack([each.arms[arm] for each, arm in zip(asked, arms, strict=True)])
        paid = np.array([each.rewards[arm] for each, arm in zip(asked, arms, strict=True)])
        state = runs.update(state, users, x, paid, generators(seeds, t, UPDATE))
        chosen.append(arms)
    return np.array(chosen), state


def played_plainly(policy, environment, seed):
    """Plays one run of a policy that changes in place. Returns arms (T,)."""
    chosen = []
    for t, asked in enumerate(environment):
        arm = policy.choose(asked.user, asked.arms, generator(seed, t, CHOOSE))
        x, paid = asked.arms[arm], float(asked.rewards[arm])
        policy.update(asked.user, x, paid, generator(seed, t, UPDATE))
        chosen.append(arm)
    return np.array(chosen)


def with_parts(state, **parts):
    """The state with other parts, wherever they are in it."""
    meta, site = (
        kept._replace(**{name: part for name, part in parts.items() if name in kept._fields})
        for kept in (state.meta, state.site)
    )
    return state._replace(meta=meta, site=site, known=parts.get("known", state.known))
