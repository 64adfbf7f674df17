"""Ridge regression, one row at a time: estimates of users and clusters, and their bounds.

Li, Chu, Langford, Schapire. A Contextual-Bandit Approach to Personalized News Article
Recommendation. WWW 2010 (Algorithm 1); Abbasi-Yadkori, Pal, Szepesvari. Improved Algorithms for
Linear Stochastic Bandits. NeurIPS 2011. CLUB, SCLUB, COFIBA and LOCB differ in how they form
clusters.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Self

import numpy as np
from scipy.linalg.blas import dsymm, dsymv, dsyr
from scipy.linalg.lapack import dpotrf, dpotri

from engram.core.arrays import Array, Ints
from engram.core.checks import require


class Ridge(NamedTuple):
    """A ridge estimate from rows (x, r), with A = lambda I + sum x x'. It is never changed."""

    rows: int  # number of rows
    moment: Array  # b = sum r x, shape (d,)
    inverse: Array  # A^-1, shape (d, d), symmetric; only its upper triangle is kept
    theta: Array  # A^-1 b, shape (d,)


def check_ridge(dim: int, lam: float, **weights: float) -> None:
    """Raises ``ValueError`` unless dim >= 1, lam > 0 and each of the weights is finite and >= 0."""
    require(dim >= 1, "dim", dim, "at least 1")
    require(0 < lam < np.inf, "lam", lam, "finite and positive")
    for name, weight in weights.items():
        require(0 <= weight < np.inf, name, weight, "finite and at least 0")


def fresh(dim: int, lam: float) -> Ridge:
    """Returns the estimate from no rows."""
    inverse = np.eye(dim, order="F") / lam
    return Ridge(0, np.zeros(dim), inverse, np.zeros(dim))


def observed(ridge: Ridge, x: Array, reward: float) -> Ridge:
    """Returns the estimate after one more row (Sherman and Morrison).

    Its inverse is A^-1 - A^-1 x x' A^-1 / (1 + x' A^-1 x), and theta = A^-1 b.
    """
    ahead = dsymv(1.0, ridge.inverse, x)
    inverse = dsyr(-1.0 / (1.0 + float(ahead @ x)), ahead, a=ridge.inverse)
    moment = ridge.moment + reward * x
    return Ridge(ridge.rows + 1, moment, inverse, dsymv(1.0, inverse, moment))


def fitted(several: Iterable[tuple[Array, Ridge]], lam: float) -> Ridge:
    """Returns the estimate from the rows of several estimates together, A = lambda I + sum x x'.

    Each, of at least one, comes with its sum x x' in the upper triangle; lambda is positive.
    """
    (first, one), *others = several
    gram, moment, count = np.array(first, order="F"), one.moment.copy(), one.rows
    for more, other in others:
        gram += more
        moment += other.moment
        count += other.rows
    gram[np.diag_indices(len(gram))] += lam
    root, _ = dpotrf(gram, clean=0, overwrite_a=1)  # lambda > 0, so that there is one
    inverse, _ = dpotri(root, overwrite_c=1)
    return Ridge(count, moment, inverse, dsymv(1.0, inverse, moment))


def widths(ridge: Ridge, arms: Array) -> Array:
    """Returns sqrt(x' A^-1 x) for arms (K, d), shape (K,)."""
    columns = arms.T
    squares = (columns * dsymm(1.0, ridge.inverse, columns)).sum(axis=0)
    found: Array = np.sqrt(np.maximum(squares, 0.0))  # rounding may take 0 below 0
    return found


def optimistic(ridge: Ridge, arms: Array, alpha: float) -> Array:
    """Returns upper confidence bounds theta' x + alpha sqrt(x' A^-1 x) of arms (K, d), shape (K,).

    All linear policies use this width. Some of the papers multiply it by sqrt(log(t + 1)), and some
    authors' codes leave out the square root.
    """
    bounds: Array = arms @ ridge.theta
    return bounds + alpha * widths(ridge, arms) if alpha else bounds


# --- Users and clusters --------------------------------------------------------------------

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
        after = UserEstimate(dsyr(1.0, x, a=before.gram), observed(before.ridge, x, reward))
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
