"""Updates as whole numbers modulo 2^32, whose sum does not wrap.

A client's update is clipped to norm C, so that each of its numbers lies in [-C, C], and its weight
is a fraction of the largest one. A sum over n clients then lies in [-n C, n C], for which the
2^32 values are divided evenly. Rounding is to the nearest level: it moves each number of a sum over
p parties by at most p C / (2 L), for L levels in C.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from engram.checks import require

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint32]

MOST_CLIENTS: Final = 2**16
"""Most clients of a round: for each, more than 2^14 levels are left on either side of zero."""


def levels(clients: int) -> int:
    """Returns the number L of levels in the bound C, for a sum over so many clients.

    The sum's largest magnitude, n L, and half a level of rounding for each party, of which there
    are at most n, are below 2^31.

    Raises:
        ValueError: ``clients`` is not in 1..MOST_CLIENTS.
    """
    require(1 <= clients <= MOST_CLIENTS, "clients", clients, f"in 1..{MOST_CLIENTS}")
    return (2**31 - 1) // clients - 1


def quantize(update: Floats, *, bound: float, weight: float, clients: int) -> Words:
    """Returns a weighted update as whole numbers modulo 2^32.

    Args:
        update: The update; numbers beyond the bound, as rounding of a clip leaves, are cut to it.
        bound: C; > 0.
        weight: Its weight, the number of clients that it stands for at most; in [0, clients].
        clients: n, clients of the round.

    Raises:
        ValueError: An argument is out of range, or a number is not finite.
    """
    require(bound > 0, "bound", bound, "positive")
    require(0 <= weight <= clients, "weight", weight, f"in [0, {clients}]")
    require(bool(np.isfinite(update).all()), "update", "others", "finite")
    cut = np.clip(update / bound, -1.0, 1.0)
    return np.rint(cut * (weight * levels(clients))).astype(np.int64).astype(np.uint32)


def restore(total: Words, *, bound: float, clients: int) -> Floats:
    """Returns the sum of weighted updates that a sum modulo 2^32 stands for."""
    return total.view(np.int32).astype(np.float64) * (bound / levels(clients))
