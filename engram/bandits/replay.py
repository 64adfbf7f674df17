"""What users have been shown and what they made of it: the rows that learners train on."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from engram.bandits.persistent import Persistent

__all__ = [
    "Drawn",
    "Replay",
    "Sample",
    "add",
    "draw",
    "drawn_rows",
    "empty",
    "kept_rows",
    "of_each",
    "with_rows",
    "with_users",
]

_FIRST = 8  # rows, and users, that there is room for at first
Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]


class Replay(NamedTuple):
    """Each user's last rows T^u, in R runs.

    Attributes:
        x: Shape (R, U, B, d): features of what was played. There is room for U users and
            B rows of each; both double where they are not enough.
        rewards: Shape (R, U, B).
        seen: Shape (R, U): mu^u, how many rows each user has had.
        limit: Rows that are kept of each user; older ones are overwritten.
    """

    x: Persistent
    rewards: Persistent
    seen: Ints
    limit: int


class Drawn(NamedTuple):
    """Which n rows were drawn for each of M learners.

    Attributes:
        runs: The learner's run, shape (M,).
        users: Whose each row is, shape (M, n).
        slots: Which of this user's, shape (M, n).
        shares: Of each row in the mean loss, shape (M, n): 1 / n, or 0 where there was nothing to
            draw.
    """

    runs: Ints
    users: Ints
    slots: Ints
    shares: Array

    def step(self, number: int) -> "Drawn":
        """Returns what was drawn for one of J steps, from 0, where entries are (M, J, n)."""
        at = np.s_[:, number]
        return Drawn(self.runs, self.users[at], self.slots[at], self.shares[at])


class Sample(NamedTuple):
    """n rows drawn for each of M learners.

    Attributes:
        x: Columns, shape (M, d, n).
        rewards: Shape (M, n).
        shares: Of each row in the mean loss, shape (M, n), as in ``Drawn``.
    """

    x: Tensor
    rewards: Tensor
    shares: Tensor

    def step(self, number: int) -> "Sample":
        """Returns the rows of one of J steps, from 0, where there are (M, J, n)."""
        return Sample(self.x[:, number], self.rewards[:, number], self.shares[:, number])


def empty(runs: int, dim: int, limit: int, dtype: torch.dtype = torch.float32) -> Replay:
    """Returns what is known before the first round: nothing."""
    rows = min(_FIRST, limit)
    return Replay(
        Persistent(torch.zeros(runs, _FIRST, rows, dim, dtype=dtype)),
        Persistent(torch.zeros(runs, _FIRST, rows, dtype=dtype)),
        np.zeros((runs, _FIRST), dtype=np.intp),
        limit,
    )


def with_users(kept: Replay, users: int) -> Replay:
    """Returns the same with room for as many users."""
    more = users - kept.seen.shape[1]
    return kept._replace(
        x=Persistent(pad(kept.x.read(), (0, 0, 0, 0, 0, more))),
        rewards=Persistent(pad(kept.rewards.read(), (0, 0, 0, more))),
        seen=np.pad(kept.seen, ((0, 0), (0, more))),
    )


def with_rows(kept: Replay, rows: int) -> Replay:
    """Returns the same with room for as many rows of each user."""
    more = rows - kept.rewards.read().shape[2]
    return kept._replace(
        x=Persistent(pad(kept.x.read(), (0, 0, 0, more))),
        rewards=Persistent(pad(kept.rewards.read(), (0, more))),
    )


def add(kept: Replay, users: Ints, x: Array, rewards: Array) -> Replay:
    """Returns what is known after one more row in each run: of users (R,), x (R, d), r (R,)."""
    runs = np.arange(len(users))
    capacity = kept.rewards.read().shape[2]
    if capacity < kept.limit and (kept.seen[runs, users] >= capacity).any():
        capacity = min(2 * capacity, kept.limit)
        kept = with_rows(kept, capacity)
    seen = kept.seen.copy()
    seen[runs, users] += 1
    index = _tensors(runs, users, kept.seen[runs, users] % capacity)
    dtype = kept.x.read().dtype
    return kept._replace(
        x=kept.x.write(index, torch.tensor(x, dtype=dtype)),
        rewards=kept.rewards.write(index, torch.tensor(rewards, dtype=dtype)),
        seen=seen,
    )


def kept_rows(kept: Replay) -> Ints:
    """Returns how many rows there are to draw from, of each user, shape (R, U)."""
    return np.minimum(kept.seen, kept.limit)


def draw(counts: Ints, runs: Ints, weights: Array, lots: Array) -> Drawn:
    """Draws rows of several users, with replacement, for all of J steps.

    Args:
        counts: How many rows each user has, for each learner, shape (M, U).
        runs: Of each learner the run, shape (M,).
        weights: w_u, shape (M, U): a row of u is drawn with a probability proportional to it.
        lots: Uniform on [0, 1), shape (M, J, n): each draws a row. Equal weights with equal lots
            get equal rows.

    Returns:
        Entries of shape (M, J, n); a step's are ``Drawn.step``.
    """
    learners, users = weights.shape
    flat = lots.reshape(learners, -1)
    ends = np.cumsum(counts * weights, axis=1)
    total = ends[:, -1:]
    # One search for all learners at once: each one's numbers lie beyond those of the one before.
    beyond = 2.0 * np.arange(learners)[:, None]
    ranks = ends / np.where(total > 0, total, 1.0) + beyond
    wanted = np.minimum(flat + beyond, np.nextafter(beyond + 1, 0))  # which may round up to it
    found = np.searchsorted(ranks.ravel(), wanted.ravel(), side="right")
    first = users * np.arange(learners)[:, None]
    at = np.minimum(found.reshape(flat.shape), first + users - 1)
    own, before, each = (part.ravel()[at] for part in (counts, ends - counts * weights, weights))
    places = (flat * total - before) / np.where(each > 0, each, 1.0)
    slots = places.astype(np.intp).clip(0, np.maximum(own - 1, 0))
    shares = np.broadcast_to((total > 0)[..., None] / lots.shape[2], lots.shape)
    return Drawn(runs, (at - first).reshape(lots.shape), slots.reshape(lots.shape), shares)


def drawn_rows(kept: Replay, drawn: Drawn) -> Sample:
    """Returns the rows that were drawn, in the entries' shape: for one step, or for several."""
    x, rewards = kept.x.read(), kept.rewards.read()
    _, users, capacity = rewards.shape
    runs = drawn.runs.reshape(-1, *[1] * (drawn.users.ndim - 1))
    rows = torch.from_numpy(((runs * users + drawn.users) * capacity + drawn.slots).ravel())
    return Sample(  # a tenth of the time that indexing by three arrays takes
        x.flatten(0, 2).index_select(0, rows).reshape(*drawn.users.shape, -1).mT,
        rewards.flatten().index_select(0, rows).reshape(drawn.users.shape),
        torch.tensor(drawn.shares, dtype=x.dtype),
    )


def of_each(kept: Replay, lots: Array) -> Sample:
    """Draws rows of every user alone, for learners of shape (R, U) in place of (M,).

    Args:
        kept: The rows.
        lots: Uniform on [0, 1), shape (R, n).
    """
    runs, users = kept.seen.shape
    counts = kept_rows(kept)[..., None]
    slots = (lots[:, None] * counts).astype(np.intp)
    index = _tensors(np.arange(runs)[:, None, None], np.arange(users)[:, None], slots)
    x, rewards = kept.x.read()[index], kept.rewards.read()[index]
    shares = torch.from_numpy((counts > 0) / lots.shape[1]).to(x.dtype).expand(slots.shape)
    return Sample(x.mT, rewards, shares)


def _tensors(*index: Ints) -> tuple[Tensor, ...]:
    return tuple(map(torch.from_numpy, index))
