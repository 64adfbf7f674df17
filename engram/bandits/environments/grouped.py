"""Users in known groups by topic, so that users agree on some arms and not on others."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np

from engram.bandits.environments.environment import Environment, Round, checked_length
from engram.bandits.policy import ROUND, SETTING, generator
from engram.core.arrays import Array, Bools, Ints
from engram.core.checks import require
from engram.online.loss_streams import directions

REWARDS: Final[Mapping[str, Callable[[Array], Array]]] = {
    "linear": lambda z: (1 + z) / 2,
    "cosine": lambda z: (1 + np.cos(3 * z)) / 2,
}
"""Expected rewards phi in [0, 1] of <a, z> in [-1, 1], by name."""

_TRIED, _LEAST = 10_000, 0.01  # directions, and the share of them that must keep a gap


def grouped(
    *,
    users: int,
    groups: int,
    dim: int,
    horizon: int,
    seed: int,
    arms: int = 10,
    topics: int = 1,
    reward: str = "linear",
    noise: float = 0.1,
    gap: float = 0.0,
) -> Environment:
    """Builds an environment of groups of users with different parameters.

    An arm x = (z, 1) / sqrt(2), |x| = 1, has one topic, drawn uniformly: z has a uniform direction
    in the topic's own features, and is 0 in those of other topics. In each topic users are divided
    anew into groups whose sizes differ by at most one, and each group has a parameter a of uniform
    direction, |a| = 1: E[r | u] = phi(<a, z>). So the relative group for an arm (Definition 3.1) is
    the user's group in the arm's topic: always the same with one topic; with more topics, users
    agree on some arms and not on others. In each round a user is drawn uniformly.

    For the reward ``linear``, E[r | u] = <theta, x> with theta = (a of the first topic, a of the
    second, ..., 1) / sqrt(2).

    Args:
        users: Number of users, at least 1.
        groups: Number q of groups in each topic, in 1, ..., users.
        dim: d, one more than a multiple of ``topics``.
        horizon: T, at least 1.
        seed: Seed of all draws.
        arms: K, at least 1.
        topics: Number of topics, at least 1.
        reward: phi, a key of ``REWARDS``.
        noise: Standard deviation, >= 0, of normal noise, which is clipped symmetrically where a
            reward would leave [0, 1]. Clipping keeps the mean and reduces the deviation.
        gap: gamma, in [0, 1): arms are redrawn until the groups' expected rewards differ by at
            least this much (Definition 3.2).

    Raises:
        ValueError: If a number is out of range, or fewer than 1 % of arms keep the gap.
    """
    checked_length(horizon, arms)
    require(1 <= groups <= users, "groups", groups, f"in [1, {users}], the number of users")
    require(topics >= 1, "topics", topics, "at least 1")
    whole = dim > topics and (dim - 1) % topics == 0
    require(whole, "dim", dim, f"1 + a multiple of {topics}, the number of topics")
    require(reward in REWARDS, "reward", reward, f"one of {', '.join(REWARDS)}")
    require(0 <= noise < np.inf, "noise", noise, "at least 0")
    require(0 <= gap < 1, "gap", gap, "in [0, 1)")
    rng, block = generator(seed, 0, SETTING), (dim - 1) // topics
    parameters = directions(rng, topics * groups, block).reshape(topics, groups, block)
    group = np.stack([rng.permutation(users) % groups for _ in range(topics)])  # (topics, users)
    environment = _Tastes(parameters, group, REWARDS[reward], gap)
    for topic in range(topics):
        environment.check(rng, topic)

    def round_(t: int) -> Round:
        rng = generator(seed, t, ROUND)
        topic, z = environment.offer(rng, arms)
        user = int(rng.integers(users))
        means = environment.expected_rewards(topic, z)[:, user]
        room = np.minimum(means, 1 - means)
        rewards = means + np.clip(noise * rng.standard_normal(arms), -room, room)
        return Round(user, _placed(topic, z, topics), means, rewards)

    def expected_rewards(t: int) -> Array:
        return environment.expected_rewards(*environment.offer(generator(seed, t, ROUND), arms))

    return Environment(horizon, users, arms, dim, round_, expected_rewards)


class _Tastes(NamedTuple):
    parameters: Array  # a, shape (topics, groups, (d - 1) / topics)
    group: Ints  # group of each user in each topic, shape (topics, users)
    reward: Callable[[Array], Array]  # phi
    gap: float  # gamma

    def expected(self, topic: Ints, z: Array) -> Array:
        """Returns the groups' expected rewards of arms of these topics, shape (n, groups)."""
        return self.reward(np.einsum("nqb,nb->nq", self.parameters[topic], z))

    def expected_rewards(self, topic: Ints, z: Array) -> Array:
        """Returns the users' expected rewards, shape (n, users)."""
        return np.take_along_axis(self.expected(topic, z), self.group[topic], axis=1)

    def near(self, topic: Ints, z: Array) -> Bools:
        """Marks the arms of which two groups expect rewards less than the gap apart."""
        between = np.diff(np.sort(self.expected(topic, z), axis=1), axis=1)
        return np.asarray(between.min(axis=1, initial=np.inf) < self.gap)

    def offer(self, rng: np.random.Generator, arms: int) -> tuple[Ints, Array]:
        """Draws arms: their topics, (K,), and z there, (K, (d - 1) / topics)."""
        topics, _, block = self.parameters.shape
        topic = rng.integers(topics, size=arms)
        z = directions(rng, arms, block)
        near = self.near(topic, z)
        while near.any():
            arm = np.repeat(np.flatnonzero(near), 16)  # several at a time, for speed
            other = directions(rng, len(arm), block)
            kept = ~self.near(topic[arm], other)
            z[arm[kept]] = other[kept]
            near[arm[kept]] = False
        return topic, z

    def check(self, rng: np.random.Generator, topic: int) -> None:
        """Refuses a gap that few arms of a topic keep."""
        z = directions(rng, _TRIED, self.parameters.shape[2])
        kept = 1 - float(self.near(np.full(_TRIED, topic), z).mean())
        less = f"less: with these groups {kept:.1%} of arms keep it, and {_LEAST:.0%} must"
        require(kept >= _LEAST, "gap", self.gap, less)


def _placed(topic: Ints, z: Array, topics: int) -> Array:
    """Returns arms with all features, shape (K, d)."""
    arms, block = z.shape
    found = np.zeros((arms, topics, block))
    found[np.arange(arms), topic] = z
    return np.asarray(np.column_stack([found.reshape(arms, -1), np.ones(arms)]) / np.sqrt(2))
