"""Fixed point modulo 2^32, where the sum of bounded updates does not wrap.

A client's update is clipped to norm C, so that each of its numbers lies in [-C, C], and its weight
is a fraction of the largest one. A sum over n clients then lies in [-n C, n C], for which the
2^32 values are divided evenly. Rounding is to the nearest level: it moves each number of a sum over
p parties by at most p C / (2 L), for L levels in C.
"""

import math
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from engram.core.checks import require

if TYPE_CHECKING:  # keys are agreed without torch
    from engram.guards.places import Sum

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint32]

MOST: Final = 2**16
"""Largest room: more than 2^14 levels are left in the bound."""


def room_of(total: "Sum", multiplier: float) -> int:
    """Returns the largest magnitude of a sum, in bounds: clients', and 8 deviations of its noise.

    Noise of all n parties, with the multiplier z, has a deviation of z (L + sqrt(d)) sqrt(n / t)
    levels, where sqrt(d) is at most L / 4. It is larger once in 10^13 numbers, which then wrap.
    """
    spread = multiplier * math.sqrt(total.parties / total.least)
    return total.clients + math.ceil(8 * 1.25 * spread)


def levels(room: int) -> int:
    """Returns the number L of levels in the bound C, for a sum of magnitude ``room`` C at most.

    With half a level of rounding for each party, of whom there are no more, that is below 2^31.

    Args:
        room: See ``room_of``; in 1..MOST.
    """
    require(1 <= room <= MOST, "clients", room, f"in 1..{MOST}, with their noise")
    return (2**31 - 1) // room - 1


def quantize(update: Floats, *, bound: float, weight: float, room: int) -> Words:
    """Returns a weighted update as whole numbers modulo 2^32.

    Args:
        update: The update; numbers beyond the bound, as rounding of a clip leaves, are cut to it.
        bound: C; > 0.
        weight: Its weight, the number of clients that it stands for at most; in [0, room].
        room: As for ``levels``.

    Raises:
        ValueError: An argument is out of range, or a number is not finite.
    """
    require(bound > 0, "bound", bound, "positive")
    require(0 <= weight <= room, "weight", weight, f"in [0, {room}]")
    require(bool(np.isfinite(update).all()), "update", "others", "finite")
    cut = np.clip(update / bound, -1.0, 1.0)
    return np.rint(cut * (weight * levels(room))).astype(np.int64).astype(np.uint32)


def restore(total: Words, *, bound: float, room: int) -> Floats:
    """Returns the sum of weighted updates that a sum modulo 2^32 stands for."""
    return total.view(np.int32).astype(np.float64) * (bound / levels(room))
