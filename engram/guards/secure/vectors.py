"""Updates as vectors: the changes that clients send, in the order of their slots' paths."""

from math import prod

import numpy as np
import torch

from engram.core.clip_and_noise import changes, origin_of
from engram.core.method import Method, Slots
from engram.core.slots import flat, over_slots, unflat
from engram.guards.secure.quantize import Floats


def to_vector(method: Method, received: Slots, sent: Slots) -> Floats:
    """Returns an update's changes, shape (numbers,): models less the received ones, others as is.

    Args:
        method: The method.
        received: The slots that all clients receive alike.
        sent: The slots that a client sends, or the mean of those of several.
    """
    moved = flat(changes(method, received, sent))
    parts = [moved[path].double().cpu().numpy().ravel() for path in sorted(moved)]
    return np.concatenate([np.zeros(0), *parts])


def from_vector(method: Method, received: Slots, like: Slots, vector: Floats) -> Slots:
    """Undoes ``to_vector``, for slots in the shapes of ``like``, in float32."""
    shapes, found, at = flat(like), {}, 0
    for path in sorted(shapes):
        shape, start = tuple(shapes[path].shape), at
        at += prod(shape)
        found[path] = torch.from_numpy(vector[start:at].reshape(shape)).float()
    moved = unflat(found, like)
    return over_slots(torch.add, moved, origin_of(method, received, moved))


def numbers(like: Slots) -> int:
    """Returns the length of an update in these shapes."""
    return sum(prod(leaf.shape) for leaf in flat(like).values())
