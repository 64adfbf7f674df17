"""Users of whom each has an estimate, and groups of users who have one together.

It is what CLUB, SCLUB, COFIBA and LOCB share, which differ in who is in a group.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engram.bandits.policy import Array
from engram.bandits.ridge import Ridge, added, fitted, fresh, observed

__all__ = [
    "Cluster",
    "UserEstimate",
    "UserStats",
    "cluster_estimate",
    "confidence_radius",
    "empty",
    "prune",
    "with_row",
    "with_user",
]

Cluster = frozenset[int]
Ints = npt.NDArray[np.intp]


class UserEstimate(NamedTuple):
    """What is known of a user.

    Attributes:
        gram: sum x x', shape (d, d), of which only the upper triangle is kept.
        ridge: The estimate.
    """

    gram: Array
    ridge: Ridge


class UserStats(NamedTuple):
    """What is known of users, and of groups of them.

    Attributes:
        unseen: Of who has not been seen.
        users: Of each who has, by number.
        thetas: Their estimates, shape (n, d), where n is more than their largest number; those of
            numbers that are no user's mean nothing.
        rows: How many rows each has, shape (n,).
        groups: Estimates of groups that have been asked for, from all their users' rows. They are
            kept up to date by rank-one updates, as long as there are such groups.
    """

    unseen: UserEstimate
    users: Mapping[int, UserEstimate]
    thetas: Array
    rows: Ints
    clusters: Mapping[Cluster, Ridge]


def empty(dim: int, lam: float) -> UserStats:
    """Returns the crowd of nobody."""
    unseen = UserEstimate(np.zeros((dim, dim), order="F"), fresh(dim, lam))
    return UserStats(unseen, {}, np.zeros((0, dim)), np.zeros(0, dtype=np.intp), {})


def with_user(stats: UserStats, user: int, to: Collection[Cluster]) -> UserStats:
    """Returns the crowd with one more user, who has no rows.

    Args:
        crowd: Before.
        user: The newcomer.
        to: The groups that have the newcomer in them from now on.
    """
    more = max(0, user + 1 - len(stats.rows))
    return stats._replace(
        users={**stats.users, user: stats.unseen},
        thetas=np.pad(stats.thetas, ((0, more), (0, 0))),
        rows=np.pad(stats.rows, (0, more)),
        clusters={them | {user} if them in to else them: r for them, r in stats.clusters.items()},
    )


def with_row(stats: UserStats, user: int, x: Array, reward: float) -> UserStats:
    """Returns the crowd after one more row (x, reward) of one of its users."""
    before = stats.users[user]
    after = UserEstimate(added(before.gram, x), observed(before.ridge, x, reward))
    thetas, rows = stats.thetas.copy(), stats.rows.copy()
    thetas[user], rows[user] = after.ridge.theta, after.ridge.rows
    clusters = {
        them: observed(ridge, x, reward) if user in them else ridge
        for them, ridge in stats.clusters.items()
    }
    return UserStats(stats.unseen, {**stats.users, user: after}, thetas, rows, clusters)


def prune(stats: UserStats, user: int, clusters: Collection[Cluster]) -> UserStats:
    """Returns the crowd without groups that have a user in them and are none of ``clusters``.

    It is called for the user served, with all groups that this user is in. So what is remembered
    of groups that are no more is forgotten when one of their users is served next.
    """
    alive = {them: r for them, r in stats.clusters.items() if user not in them or them in clusters}
    return stats._replace(clusters=alive)


def cluster_estimate(stats: UserStats, them: Cluster, lam: float) -> tuple[Ridge, UserStats]:
    """Returns the estimate from all rows of a group's users, and the crowd that remembers it.

    It is made anew if it is not known: O(n d^2 + d^3).
    """
    if len(them) == 1:
        return stats.users[next(iter(them))].ridge, stats
    if them not in stats.clusters:
        made = fitted((stats.users[user] for user in sorted(them)), lam)
        stats = stats._replace(clusters={**stats.clusters, them: made})
    return stats.clusters[them], stats


def confidence_radius(rows: Ints) -> Array:
    """Returns F(T) = sqrt((1 + ln(1 + T)) / (1 + T)), how far off estimates from T rows are.

    The confidence radius by which CLUB and those after it tell users apart.
    """
    found: Array = np.sqrt((1 + np.log1p(rows)) / (1 + rows))
    return found
