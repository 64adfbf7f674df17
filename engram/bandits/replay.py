"""Per-user replay buffers: the rows that learners train on."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from engram.bandits.versioned_tensor import Persistent
from engram.core.arrays import Array, Ints

Rngs = Sequence[np.random.Generator]  # of each run

_FIRST = 8  # initial capacity, in rows and in users


class ReplayBuffer(NamedTuple):
    """Each user's last rows T^u, in R runs."""

    # Features of the arms played, shape (R, U, B, d), with capacity for U users and B rows of each;
    # both double when they are exceeded.
    x: Persistent
    rewards: Persistent  # shape (R, U, B)
    seen: Ints  # mu^u, number of rows that each user has had, shape (R, U)
    limit: int  # maximum number of rows kept per user; older ones are overwritten


class Drawn(NamedTuple):
    """The numbers of n rows drawn for each of M learners."""

    runs: Ints  # the learner's run, shape (M,)
    users: Ints  # the user that each row belongs to, shape (M, n)
    slots: Ints  # the row's place in this user's buffer, shape (M, n)
    # The row's weight in the mean loss, shape (M, n): 1 / n, or 0 if there was nothing to draw.
    shares: Array

    def step(self, number: int) -> "Drawn":
        """Returns the rows of one of J steps, counted from 0, if entries are (M, J, n)."""
        at = np.s_[:, number]
        return Drawn(self.runs, self.users[at], self.slots[at], self.shares[at])


class Sample(NamedTuple):
    """n rows drawn for each of M learners."""

    x: Tensor  # features as columns, shape (M, d, n)
    rewards: Tensor  # shape (M, n)
    shares: Tensor  # weights in the mean loss, shape (M, n), as in ``Drawn``

    def step(self, number: int) -> "Sample":
        """Returns the rows of one of J steps, counted from 0, if there are (M, J, n)."""
        return Sample(self.x[:, number], self.rewards[:, number], self.shares[:, number])


def empty(runs: int, dim: int, limit: int, dtype: torch.dtype = torch.float32) -> ReplayBuffer:
    """Returns empty buffers."""
    rows = min(_FIRST, limit)
    return ReplayBuffer(
        Persistent(torch.zeros(runs, _FIRST, rows, dim, dtype=dtype)),
        Persistent(torch.zeros(runs, _FIRST, rows, dtype=dtype)),
        np.zeros((runs, _FIRST), dtype=np.intp),
        limit,
    )


def with_users(buffer: ReplayBuffer, users: int) -> ReplayBuffer:
    """Extends the capacity to this number of users."""
    more = users - buffer.seen.shape[1]
    return buffer._replace(
        x=Persistent(pad(buffer.x.read(), (0, 0, 0, 0, 0, more))),
        rewards=Persistent(pad(buffer.rewards.read(), (0, 0, 0, more))),
        seen=np.pad(buffer.seen, ((0, 0), (0, more))),
    )


def with_rows(buffer: ReplayBuffer, rows: int) -> ReplayBuffer:
    """Extends the capacity to this number of rows per user."""
    more = rows - buffer.rewards.read().shape[2]
    return buffer._replace(
        x=Persistent(pad(buffer.x.read(), (0, 0, 0, more))),
        rewards=Persistent(pad(buffer.rewards.read(), (0, more))),
    )


def add(buffer: ReplayBuffer, users: Ints, x: Array, rewards: Array) -> ReplayBuffer:
    """Adds a row in each run: users (R,), x (R, d), rewards (R,)."""
    runs = np.arange(len(users))
    capacity = buffer.rewards.read().shape[2]
    if capacity < buffer.limit and (buffer.seen[runs, users] >= capacity).any():
        capacity = min(2 * capacity, buffer.limit)
        buffer = with_rows(buffer, capacity)
    seen = buffer.seen.copy()
    seen[runs, users] += 1
    index = _tensors(runs, users, buffer.seen[runs, users] % capacity)
    dtype = buffer.x.read().dtype
    return buffer._replace(
        x=buffer.x.write(index, torch.tensor(x, dtype=dtype)),
        rewards=buffer.rewards.write(index, torch.tensor(rewards, dtype=dtype)),
        seen=seen,
    )


def kept_rows(buffer: ReplayBuffer) -> Ints:
    """Returns the number of rows in each user's buffer, shape (R, U)."""
    return np.minimum(buffer.seen, buffer.limit)


def uniforms(rngs: Rngs, steps: int, batch: int) -> Array:
    """Returns uniform numbers in [0, 1) that draw the rows of J steps, shape (R, J, n)."""
    return np.stack([rng.random((steps, batch)) for rng in rngs])


def draw(counts: Ints, runs: Ints, weights: Array, uniforms: Array) -> Drawn:
    """Draws rows of several users, with replacement, for all of J steps.

    Args:
        counts: Number of rows of each user, for each learner, shape (M, U).
        runs: Run of each learner, shape (M,).
        weights: w_u, shape (M, U): a row of u is drawn with a probability proportional to it.
        uniforms: Uniform numbers in [0, 1), shape (M, J, n), each of which draws a row: the same
            weights and numbers give the same rows.

    Returns:
        Entries of shape (M, J, n); ``Drawn.step`` selects a step.
    """
    learners, users = weights.shape
    flat = uniforms.reshape(learners, -1)
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
    shares = np.broadcast_to((total > 0)[..., None] / uniforms.shape[2], uniforms.shape)
    return Drawn(runs, (at - first).reshape(uniforms.shape), slots.reshape(uniforms.shape), shares)


def drawn_rows(buffer: ReplayBuffer, drawn: Drawn) -> Sample:
    """Returns the rows that were drawn, for one step or for several."""
    x, rewards = buffer.x.read(), buffer.rewards.read()
    _, users, capacity = rewards.shape
    runs = drawn.runs.reshape(-1, *[1] * (drawn.users.ndim - 1))
    rows = torch.from_numpy(((runs * users + drawn.users) * capacity + drawn.slots).ravel())
    return Sample(  # a tenth of the time that indexing by three arrays takes
        x.flatten(0, 2).index_select(0, rows).reshape(*drawn.users.shape, -1).mT,
        rewards.flatten().index_select(0, rows).reshape(drawn.users.shape),
        torch.tensor(drawn.shares, dtype=x.dtype),
    )


def of_each(buffer: ReplayBuffer, uniforms: Array) -> Sample:
    """Draws rows of each user for that user's own learner; learners have shape (R, U), not (M,).

    Rows are drawn by uniform numbers in [0, 1), shape (R, n).
    """
    runs, users = buffer.seen.shape
    counts = kept_rows(buffer)[..., None]
    slots = (uniforms[:, None] * counts).astype(np.intp)
    index = _tensors(np.arange(runs)[:, None, None], np.arange(users)[:, None], slots)
    x, rewards = buffer.x.read()[index], buffer.rewards.read()[index]
    shares = torch.from_numpy((counts > 0) / uniforms.shape[1]).to(x.dtype).expand(slots.shape)
    return Sample(x.mT, rewards, shares)


def _tensors(*index: Ints) -> tuple[Tensor, ...]:
    return tuple(map(torch.from_numpy, index))
