"""Persistent tensors, written in place with readable earlier versions, and stacks of networks.

A stack has networks of shapes (R, U, out, in), with capacity for U users in R runs.
"""

from typing import Any, Self

import torch
from torch import Tensor

from engram.bandits.networks import Weights
from engram.core.arrays import Ints


class Persistent:
    """One version of a tensor.

    A policy's state is never changed, and yet 2000 users' networks should not be copied whenever
    one of them learns. So the newest version holds the numbers, and each older version holds what
    the next one has overwritten (Baker, "Shallow binding makes functional arrays fast", 1991).
    Writing to the newest version costs as much as is written; reading another version costs the
    changes between the two.

    Use the result of ``read`` before anything else is written or read, and do not change it.
    """

    __slots__ = ("_data", "_index", "_newer")

    def __init__(self, data: Tensor) -> None:
        """Takes over a tensor, which nobody else may hold."""
        self._data = data  # all numbers, or what `_newer` has overwritten at `_index`
        self._index: Any = None
        self._newer: Self | None = None

    def read(self) -> Tensor:
        """Returns the numbers of this version."""
        newer = []
        version = self
        while version._newer is not None:
            newer.append(version)
            version = version._newer
        for older in reversed(newer):
            version._exchange(older)
            version = older
        return self._data

    def write(self, index: Any, values: Tensor) -> Self:
        """Returns the next version, with ``values`` at ``data[index]``."""
        data = self.read()
        overwritten = data[index].clone()
        data[index] = values
        new = type(self)(data)
        self._data, self._index, self._newer = overwritten, index, new
        return new

    def _exchange(self, older: Self) -> None:
        """Makes the next older version the one that holds the numbers, in place of this one."""
        data, index = self._data, older._index
        own = data[index].clone()
        data[index] = older._data
        older._data, older._index, older._newer = data, None, None
        self._data, self._index, self._newer = own, index, older

    def __reduce__(self) -> tuple[type[Self], tuple[Tensor]]:
        """Copies and pickles hold this version alone."""
        return type(self), (self.read().clone(),)


# --- Stacks --------------------------------------------------------------------------------

Stack = tuple[Persistent, ...]


def initial_stack(start: Weights, users: int) -> Stack:
    """Returns a copy of the initial weights (R, out, in) for each user."""
    return tuple(Persistent(w[:, None].repeat(1, users, 1, 1)) for w in start)


def capacity_for(capacity: int, users: Ints) -> int:
    """Returns the capacity needed for these users: the present one, or at least twice as much."""
    needed = int(users.max()) + 1
    return capacity if needed <= capacity else max(needed, 2 * capacity)


def with_capacity(stack: Stack, start: Weights, users: int) -> Stack:
    """Extends the capacity to this number of users; new ones start from ``start``."""
    more = users - stack[0].read().shape[1]
    return tuple(
        Persistent(torch.cat([kept.read(), w[:, None].expand(-1, more, -1, -1)], dim=1))
        for kept, w in zip(stack, start, strict=True)
    )


def gather(stack: Stack, users: Ints) -> Weights:
    """Returns the networks of one user in each run, (R,): shapes (R, out, in)."""
    index = _index(users)
    return tuple(kept.read()[index] for kept in stack)


def scatter(stack: Stack, users: Ints, weights: Weights) -> Stack:
    """Replaces the networks of these users by ``weights``."""
    index = _index(users)
    return tuple(kept.write(index, w) for kept, w in zip(stack, weights, strict=True))


def _index(users: Ints) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(len(users)), torch.from_numpy(users)
