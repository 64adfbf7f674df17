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
    "Crowd",
    "Group",
    "Member",
    "Users",
    "group",
    "joined",
    "kept",
    "learned",
    "none",
    "spread",
]

Group = frozenset[int]
Users = npt.NDArray[np.intp]


class Member(NamedTuple):
    """What is known of a user.

    Attributes:
        gram: sum x x', shape (d, d), of which only the upper triangle is kept.
        ridge: The estimate.
    """

    gram: Array
    ridge: Ridge


class Crowd(NamedTuple):
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

    unseen: Member
    users: Mapping[int, Member]
    thetas: Array
    rows: Users
    groups: Mapping[Group, Ridge]


def none(dim: int, lam: float) -> Crowd:
    """Returns the crowd of nobody."""
    unseen = Member(np.zeros((dim, dim), order="F"), fresh(dim, lam))
    return Crowd(unseen, {}, np.zeros((0, dim)), np.zeros(0, dtype=np.intp), {})


def joined(crowd: Crowd, user: int, to: Collection[Group]) -> Crowd:
    """Returns the crowd with one more user, who has no rows.

    Args:
        crowd: Before.
        user: The newcomer.
        to: The groups that have the newcomer in them from now on.
    """
    more = max(0, user + 1 - len(crowd.rows))
    return crowd._replace(
        users={**crowd.users, user: crowd.unseen},
        thetas=np.pad(crowd.thetas, ((0, more), (0, 0))),
        rows=np.pad(crowd.rows, (0, more)),
        groups={them | {user} if them in to else them: r for them, r in crowd.groups.items()},
    )


def learned(crowd: Crowd, user: int, x: Array, reward: float) -> Crowd:
    """Returns the crowd after one more row (x, reward) of one of its users."""
    before = crowd.users[user]
    after = Member(added(before.gram, x), observed(before.ridge, x, reward))
    thetas, rows = crowd.thetas.copy(), crowd.rows.copy()
    thetas[user], rows[user] = after.ridge.theta, after.ridge.rows
    groups = {
        them: observed(ridge, x, reward) if user in them else ridge
        for them, ridge in crowd.groups.items()
    }
    return Crowd(crowd.unseen, {**crowd.users, user: after}, thetas, rows, groups)


def kept(crowd: Crowd, user: int, groups: Collection[Group]) -> Crowd:
    """Returns the crowd without groups that have a user in them and are none of ``groups``.

    It is called for the user served, with all groups that this user is in. So what is remembered
    of groups that are no more is forgotten when one of their users is served next.
    """
    alive = {them: r for them, r in crowd.groups.items() if user not in them or them in groups}
    return crowd._replace(groups=alive)


def group(crowd: Crowd, them: Group, lam: float) -> tuple[Ridge, Crowd]:
    """Returns the estimate from all rows of a group's users, and the crowd that remembers it.

    It is made anew if it is not known: O(n d^2 + d^3).
    """
    if len(them) == 1:
        return crowd.users[next(iter(them))].ridge, crowd
    if them not in crowd.groups:
        made = fitted((crowd.users[user] for user in sorted(them)), lam)
        crowd = crowd._replace(groups={**crowd.groups, them: made})
    return crowd.groups[them], crowd


def spread(rows: Users) -> Array:
    """Returns F(T) = sqrt((1 + ln(1 + T)) / (1 + T)), how far off estimates from T rows are.

    The confidence radius by which CLUB and those after it tell users apart.
    """
    found: Array = np.sqrt((1 + np.log1p(rows)) / (1 + rows))
    return found
