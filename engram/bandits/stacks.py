"""Networks of users, stacked: shapes (R, U, out, in), with room for U users in R runs."""

import numpy as np
import numpy.typing as npt
import torch

from engram.bandits.networks import Weights
from engram.bandits.persistent import Persistent

__all__ = ["Stack", "of_users", "put", "room_for", "stacked", "with_room"]

Ints = npt.NDArray[np.intp]
Stack = tuple[Persistent, ...]


def stacked(start: Weights, users: int) -> Stack:
    """Returns as many copies of the weights that users start from, (R, out, in)."""
    return tuple(Persistent(w[:, None].repeat(1, users, 1, 1)) for w in start)


def room_for(room: int, users: Ints) -> int:
    """Returns for how many users there should be room, if there is now for ``room``."""
    needed = int(users.max()) + 1
    return room if needed <= room else max(needed, 2 * room)


def with_room(stack: Stack, start: Weights, users: int) -> Stack:
    """Returns the same with room for as many users; new ones start from ``start``."""
    more = users - stack[0].read().shape[1]
    return tuple(
        Persistent(torch.cat([kept.read(), w[:, None].expand(-1, more, -1, -1)], dim=1))
        for kept, w in zip(stack, start, strict=True)
    )


def of_users(stack: Stack, users: Ints) -> Weights:
    """Returns the networks of one user in each run, (R,): shapes (R, out, in)."""
    index = _index(users)
    return tuple(kept.read()[index] for kept in stack)


def put(stack: Stack, users: Ints, weights: Weights) -> Stack:
    """Returns the stack in which these users' networks are ``weights``."""
    index = _index(users)
    return tuple(kept.write(index, w) for kept, w in zip(stack, weights, strict=True))


def _index(users: Ints) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(len(users)), torch.from_numpy(users)
