"""Per-user and per-cluster ridge estimates.

CLUB, SCLUB, COFIBA and LOCB share these, and differ in how they form clusters.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple, Self

import numpy as np

from engram.bandits.ridge import Ridge, added, fitted, fresh, observed
from engram.core.arrays import Array, Ints

Cluster = frozenset[int]


class UserEstimate(NamedTuple):
    """Statistics of one user."""

    gram: Array  # gram matrix sum x x', shape (d, d); only its upper triangle is kept
    ridge: Ridge  # the user's ridge estimate


class UserStats(NamedTuple):
    """Statistics of users, and estimates for clusters of users."""

    unseen: UserEstimate  # prior for unseen users
    users: Mapping[int, UserEstimate]  # the estimate of each user seen so far, by number
    # The users' coefficients, shape (n, d), n above the largest user number. Rows of numbers that
    # belong to no user are meaningless.
    thetas: Array
    rows: Ints  # number of rows of each user, shape (n,)
    # Cached estimates of clusters, from the rows of all their users. They are kept up to date by
    # rank-one updates until the cluster ceases to exist.
    clusters: Mapping[Cluster, Ridge]

    def with_user(self, user: int, to: Collection[Cluster]) -> Self:
        """Adds a user without rows, who joins some clusters."""
        more = max(0, user + 1 - len(self.rows))
        estimates = self.clusters.items()
        return self._replace(
            users={**self.users, user: self.unseen},
            thetas=np.pad(self.thetas, ((0, more), (0, 0))),
            rows=np.pad(self.rows, (0, more)),
            clusters={them | {user} if them in to else them: own for them, own in estimates},
        )

    def with_row(self, user: int, x: Array, reward: float) -> Self:
        """Adds a row (x, reward) of one of the users."""
        before = self.users[user]
        after = UserEstimate(added(before.gram, x), observed(before.ridge, x, reward))
        thetas, rows = self.thetas.copy(), self.rows.copy()
        thetas[user], rows[user] = after.ridge.theta, after.ridge.rows
        clusters = {
            them: observed(ridge, x, reward) if user in them else ridge
            for them, ridge in self.clusters.items()
        }
        return type(self)(self.unseen, {**self.users, user: after}, thetas, rows, clusters)

    def prune(self, user: int, clusters: Collection[Cluster]) -> Self:
        """Forgets cached estimates of clusters with a user in them that are not in ``clusters``.

        Call it for the user served, with all clusters that this user is in. The cache of a cluster
        that no longer exists is then dropped as soon as one of its users is served again.
        """
        estimates = self.clusters.items()
        alive = {them: own for them, own in estimates if user not in them or them in clusters}
        return self._replace(clusters=alive)

    def of_cluster(self, them: Cluster, lam: float) -> tuple[Ridge, Self]:
        """Returns the estimate from all rows of a cluster's users, and statistics that cache it.

        Takes O(n d^2 + d^3) for n users if it is not cached.
        """
        if len(them) == 1:
            return self.users[next(iter(them))].ridge, self
        if them in self.clusters:
            return self.clusters[them], self
        made = fitted((self.users[user] for user in sorted(them)), lam)
        return made, self._replace(clusters={**self.clusters, them: made})


def empty(dim: int, lam: float) -> UserStats:
    """Returns empty statistics."""
    unseen = UserEstimate(np.zeros((dim, dim), order="F"), fresh(dim, lam))
    return UserStats(unseen, {}, np.zeros((0, dim)), np.zeros(0, dtype=np.intp), {})


def confidence_radius(rows: Ints) -> Array:
    """Returns the confidence radius of estimates from T rows.

    It is F(T) = sqrt((1 + ln(1 + T)) / (1 + T)). CLUB and its successors tell users apart by it.
    """
    return np.sqrt((1 + np.log1p(rows)) / (1 + rows))
