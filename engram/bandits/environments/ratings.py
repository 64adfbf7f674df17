"""Ratings as a bandit (Section 7): of ten items a user has rated, find the one rated badly."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.linalg import svds
from sklearn.cluster import KMeans

from engram.bandits.environments.environment import Environment, Round, checked_length
from engram.bandits.policy import ROUND, generator
from engram.core.arrays import Array, Ints
from engram.core.checks import require
from engram.data.readers.csv_files import read_frame
from engram.data.schema.cells import check_columns
from engram.data.schema.columns import Column, File, Schema
from engram.data.schema.fitting import fit
from engram.data.tables.raw_tables import labels_of
from engram.settings.errors import DataError

_BELOW: Final = 2.0  # stars of a bad rating


class Rated(NamedTuple):
    """A table of ratings, with users and items numbered from 0."""

    users: Array  # vector of each user, of Euclidean norm 1, shape (n, r)
    items: Array  # vector of each item, shape (m, r)
    bad: tuple[Ints, ...]  # the items that each user has rated badly; these pay
    other: tuple[Ints, ...]  # all other items that the user has rated
    groups: Ints  # group of each user by K-means, shape (n,)

    def served(self, arms: int) -> Ints:
        """Returns the users with at least one item that pays and ``arms - 1`` that do not."""
        pairs = zip(self.bad, self.other, strict=True)
        return np.flatnonzero([len(bad) >= 1 and len(other) >= arms - 1 for bad, other in pairs])


def rated(
    users: npt.NDArray[Any],
    items: npt.NDArray[Any],
    stars: Array,
    *,
    top_users: int = 2000,
    top_items: int = 10_000,
    rank: int = 10,
    groups: int = 50,
) -> Rated:
    """Prepares a table of ratings; those below 2 stars are bad.

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
    below = f"at least 1, and less than users and items, {shape}"
    require(1 <= rank < min(shape), "rank", rank, below)
    require(1 <= groups <= shape[0], "groups", groups, f"in [1, {shape[0]}], the users")
    matrix = csr_array((value, (row, column)), shape=shape)
    # Where the iteration begins does not change what it finds, but for rounding, and signs.
    left, _, right = svds(matrix, k=rank, v0=np.ones(min(shape)))
    vectors = _unit(left)
    found = KMeans(groups, n_init=10, random_state=0).fit(vectors)
    ends = np.searchsorted(row, np.arange(1, shape[0]))
    split = [(np.split(column, ends)), (np.split(value < _BELOW, ends))]
    return Rated(
        vectors,
        _unit(right.T),
        tuple(own[paid] for own, paid in zip(*split, strict=True)),
        tuple(own[~paid] for own, paid in zip(*split, strict=True)),
        found.labels_.astype(np.intp),
    )


def read_ratings(path: Path, *, columns: Sequence[str], groups: int = 50) -> Rated:
    """Reads a CSV file with a header and a rating a row.

    Args:
        path: The file.
        columns: Columns of users, items and stars; MovieLens has ``userId``, ``movieId`` and
            ``rating``.
        groups: As in ``rated``.

    Raises:
        DataError: If it is no such table, or is too small.
    """
    frame = read_frame(path, File(), Schema())
    check_columns(path, columns, frame.columns)
    frame = frame[[*columns]]
    known = fit(frame, Schema(), others=columns).schema
    users, items = (labels_of(path, known.column(name), frame[name]) for name in columns[:2])
    stars = labels_of(path, Column(columns[2], "number"), frame[columns[2]])
    try:
        return rated(users, items, stars, groups=groups)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def ratings(table: Rated, *, horizon: int, seed: int, arms: int = 10) -> Environment:
    """Builds an environment: among ten rated items, find the one rated badly.

    An arm is the item's vector, d = r, and so the same for all users, as relative groups require.
    (The paper mentions vectors of users and items; published codes have either.)

    A round uniformly draws a group that has a user who can be served, one of these users, one of
    the items that the user rated badly, with reward 1, and ``arms - 1`` of the others, with reward
    0, all in random order. The environment's users are ``table.served(arms)``, in this order; other
    users have too few items.

    Args:
        table: The ratings.
        horizon: T, at least 1.
        seed: Seed of all draws.
        arms: K, at least 2.
    """
    checked_length(horizon, arms)
    require(arms >= 2, "arms", arms, "at least 2")
    served = table.served(arms)
    wanted = f"enough for some user: 1 bad and {arms - 1} others"
    require(len(served) >= 1, "rated items", "of no user", wanted)
    own = table.groups[served]
    groups = [np.flatnonzero(own == group) for group in np.unique(own)]

    def round_(t: int) -> Round:
        rng = generator(seed, t, ROUND)
        user = int(rng.choice(groups[rng.integers(len(groups))]))
        name = served[user]
        pays = rng.permutation(np.arange(arms) == 0)
        items = np.empty(arms, dtype=np.intp)
        items[pays] = rng.choice(table.bad[name])
        items[~pays] = rng.choice(table.other[name], arms - 1, replace=False)
        rewards = pays.astype(np.float64)
        return Round(user, table.items[items], rewards, rewards)

    return Environment(horizon, len(served), arms, table.items.shape[1], round_)


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
