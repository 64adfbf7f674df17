"""Users' networks, stacked: shapes (R, U, out, in), with capacity for U users in R runs."""

import torch

from engram.bandits.networks import Weights
from engram.bandits.versioned_tensor import Persistent
from engram.core.arrays import Ints

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
    """Returns the stack in which these users' networks are ``weights``."""
    index = _index(users)
    return tuple(kept.write(index, w) for kept, w in zip(stack, weights, strict=True))


def _index(users: Ints) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(len(users)), torch.from_numpy(users)
