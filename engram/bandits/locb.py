"""LOCB: overlapping clusters of users, each around a seed.

Ban, He. Local Clustering in Contextual Multi-Armed Bandits. WWW 2021, Algorithm 1.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from engram.bandits.policy import Policy, best
from engram.bandits.ridge import (
    Cluster,
    UserStats,
    check_ridge,
    confidence_radius,
    empty,
    optimistic,
)
from engram.core.arrays import Array
from engram.core.checks import require


class Locb(NamedTuple):
    """The state."""

    stats: UserStats  # statistics of users and clusters
    clusters: Mapping[int, Cluster]  # the users in the cluster of each seed, by the seed's number


def locb(
    dim: int, *, alpha: float, lam: float, alpha2: float = 1.0, seeds: int = 20, gamma: float = 0.2
) -> Policy[Locb]:
    """Plays the arm with the largest LinUCB bound over all clusters that the user is in.

    A cluster starts with all users. A user i who is served leaves the cluster of seed s if

        ||theta_i - theta_s|| > alpha2 (F(T_i) + F(T_s)),    F(T) = sqrt((1 + ln(1 + T)) / (1 + T))

    and enters it again otherwise. The cluster is final once alpha2 F(T_s) <= gamma / 4, as in the
    authors' code. Its A is lambda I + sum (A_i - lambda I). A user who is in no cluster is served
    by their own estimate.

    The paper draws the seeds among all users. Here users may arrive at any time, and the first ones
    are the seeds, which is as random if users arrive in random order. A new user joins all clusters
    that are not final.

    ``alpha2`` >= 0 is the scale of the radius by which estimates may differ; there are ``seeds`` >=
    1; ``gamma`` > 0 is the distance between clusters: in the end users count as one cluster if
    their estimates are less than gamma / 2 apart. For the rest see ``linucb``.
    """
    check_ridge(dim, lam, alpha=alpha, alpha2=alpha2)
    require(seeds >= 1, "seeds", seeds, "at least 1")
    require(gamma > 0, "gamma", gamma, "positive")

    def growing(state: Locb) -> list[int]:
        """Lists the seeds of clusters that are not final."""
        radius = alpha2 * confidence_radius(state.stats.rows)
        return [seed for seed in state.clusters if radius[seed] > gamma / 4]

    def present(state: Locb, user: int) -> Locb:
        if user in state.stats.users:
            return state
        entered = {seed: state.clusters[seed] | {user} for seed in growing(state)}
        stats = state.stats.with_user(user, [state.clusters[seed] for seed in entered])
        own = {user: frozenset(stats.users)} if len(state.clusters) < seeds else {}
        return Locb(stats, {**state.clusters, **entered, **own})

    def choose(state: Locb, user: int, arms: Array, rng: np.random.Generator) -> tuple[int, Locb]:
        state = present(state, user)
        stats, bounds = state.stats, []
        for them in _around(state.clusters, user) or [frozenset({user})]:
            ridge, stats = stats.of_cluster(them, lam)
            bounds.append(optimistic(ridge, arms, alpha))
        return best(np.max(bounds, axis=0), rng), state._replace(stats=stats)

    def update(state: Locb, user: int, x: Array, reward: float, _: np.random.Generator) -> Locb:
        state = present(state, user)
        stats, clusters = state.stats.with_row(user, x, reward), dict(state.clusters)
        radius = alpha2 * confidence_radius(stats.rows)
        for seed in growing(state):
            apart = np.linalg.norm(stats.thetas[user] - stats.thetas[seed])
            far = apart > radius[user] + radius[seed]
            clusters[seed] = clusters[seed] - {user} if far else clusters[seed] | {user}
        return Locb(stats.prune(user, _around(clusters, user)), clusters)

    return Policy(lambda rng: Locb(empty(dim, lam), {}), choose, update)


def _around(clusters: Mapping[int, Cluster], user: int) -> list[Cluster]:
    """Returns the distinct clusters that a user is in; several seeds may have the same one."""
    return list(dict.fromkeys(them for them in clusters.values() if user in them))
