"""Ratings as a bandit (Section 7): of ten items a user has rated, find the one rated badly."""

from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from engram.bandits.environments.environment import Environment, Round, checked_length, drawing
from engram.core.arrays import Array, Ints
from engram.core.checks import require


class Rated(NamedTuple):
    """A table of ratings, with users and items numbered from 0."""

    users: Array  # vector of each user, of Euclidean norm 1, shape (n, r)
    items: Array  # vector of each item, shape (m, r)
    bad: tuple[Ints, ...]  # the items that each user has rated badly; these pay
    other: tuple[Ints, ...]  # all other items that the user has rated
    groups: Ints  # group of each user by K-means, shape (n,)

    def served(self, arms: int) -> Ints:
        """Returns the users with at least one item that pays and ``arms - 1`` that do not."""
        enough = [
            len(bad) >= 1 and len(other) >= arms - 1
            for bad, other in zip(self.bad, self.other, strict=True)
        ]
        return np.flatnonzero(enough)


def rated(
    users: npt.NDArray[Any],
    items: npt.NDArray[Any],
    stars: Array,
    *,
    top_users: int = 2000,
    top_items: int = 10_000,
    rank: int = 10,
    groups: int = 50,
    below: float = 2.0,
    seed: int = 0,
) -> Rated:
    """Prepares a table of ratings.

    The users and the items with the most ratings in the whole table are kept; ties go to the first
    by name. Their vectors are the leading singular vectors, U and V, of the matrix of stars (0
    where there is no rating), each row scaled to Euclidean norm 1 (a row of zeros stays as it is).
    As in the paper, the matrix holds all ratings, including those that are to be guessed.

    Args:
        users: The user of each rating, shape (n,), of any sortable type.
        items: The item of each rating, likewise.
        stars: The rating, > 0; of two ratings of an item by the same user the last one counts.
        top_users: Maximum number of users kept.
        top_items: Maximum number of items kept.
        rank: Rank r of the decomposition, below the numbers of users and items.
        groups: Number of groups for K-means, at most the number of users kept.
        below: Ratings below this number of stars are bad.
        seed: Seed of K-means.
    """
    lengths = (len(users), len(items), len(stars))
    same = len(set(lengths)) == 1 and lengths[0] >= 1
    require(same, "numbers of users, items and stars", lengths, "the same, at least 1")
    good = np.isfinite(stars) & (stars > 0)
    require(bool(good.all()), "stars", stars[~good][:1].tolist(), "finite and positive")
    who, what = _most(users, top_users), _most(items, top_items)
    kept = np.flatnonzero((who >= 0) & (what >= 0))[::-1]  # the last first: the one that stands
    shape = int(who.max()) + 1, int(what.max()) + 1
    cells, rows = np.unique(who[kept] * shape[1] + what[kept], return_index=True)
    row, column, value = cells // shape[1], cells % shape[1], stars[kept][rows]
    require(
        1 <= rank < min(shape), "rank", rank, f"at least 1, and less than users and items, {shape}"
    )
    require(1 <= groups <= shape[0], "groups", groups, f"in [1, {shape[0]}], the users")
    from scipy.sparse.linalg import svds  # noqa: PLC0415 - slow to import, not always needed
    from sklearn.cluster import KMeans  # noqa: PLC0415 - slow to import, not always needed

    matrix = csr_array((value, (row, column)), shape=shape)
    # Where the iteration begins does not change what it finds, but for rounding, and signs.
    left, _, right = svds(matrix, k=rank, v0=np.ones(min(shape)))
    vectors = _unit(left)
    found = KMeans(groups, n_init=10, random_state=seed).fit(vectors)
    ends = np.searchsorted(row, np.arange(1, shape[0]))
    split = [(np.split(column, ends)), (np.split(value < below, ends))]
    return Rated(
        vectors,
        _unit(right.T),
        tuple(own[paid] for own, paid in zip(*split, strict=True)),
        tuple(own[~paid] for own, paid in zip(*split, strict=True)),
        found.labels_.astype(np.intp),
    )


def ratings(
    table: Rated,
    *,
    horizon: int,
    seed: int,
    arms: int = 10,
    features: Literal["item", "user-item"] = "item",
) -> Environment:
    """Returns an environment in which users are offered items of which they rated one badly.

    A round uniformly draws a group that has a user who can be served, one of these users, one of
    the items that the user rated badly, with reward 1, and ``arms - 1`` of the others, with reward
    0, all in random order. The environment's users are ``table.served(arms)``, in this order; other
    users have too few items.

    Args:
        table: The ratings.
        horizon: T, at least 1.
        seed: Seed of all draws.
        arms: K, at least 2.
        features: ``item``: an arm is the item's vector, d = r, and so the same for all users, as
            relative groups require. ``user-item``: the user's vector followed by the item's,
            divided by sqrt(2), d = 2 r. The paper mentions vectors of both; published codes have
            either.
    """
    checked_length(horizon, arms)
    require(arms >= 2, "arms", arms, "at least 2")
    known = features in ("item", "user-item")
    require(known, "features", features, "item or user-item")
    served = table.served(arms)
    wanted = f"enough for some user: 1 bad and {arms - 1} others"
    require(len(served) >= 1, "rated items", "of no user", wanted)
    groups = [
        np.flatnonzero(table.groups[served] == group) for group in np.unique(table.groups[served])
    ]

    def round_(t: int) -> Round:
        rng = drawing(seed, t)
        user = int(rng.choice(groups[rng.integers(len(groups))]))
        name = served[user]
        pays = rng.permutation(np.arange(arms) == 0)
        items = np.empty(arms, dtype=np.intp)
        items[pays] = rng.choice(table.bad[name])
        items[~pays] = rng.choice(table.other[name], arms - 1, replace=False)
        x = table.items[items]
        if features == "user-item":
            own = np.broadcast_to(table.users[name], x.shape)
            x = np.hstack([own, x]) / np.sqrt(2)
        rewards = pays.astype(np.float64)
        return Round(user, x, rewards, rewards)

    width = table.items.shape[1] * (1 if features == "item" else 2)
    return Environment(horizon, len(served), arms, width, round_)


def _most(names: npt.NDArray[Any], count: int) -> Ints:
    """Numbers the names with the most rows by how many they have; -1 stands for the others."""
    require(count >= 1, "how many are kept", count, "at least 1")
    found, codes, sizes = np.unique(names, return_inverse=True, return_counts=True)
    numbers = np.full(len(found), -1, dtype=np.intp)
    order = np.argsort(-sizes, kind="stable")[:count]
    numbers[order] = np.arange(len(order))
    return numbers[codes]


def _unit(x: Array) -> Array:
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(lengths > 0, lengths, 1.0)
