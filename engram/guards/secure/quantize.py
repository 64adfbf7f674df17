"""Fixed point modulo 2^32, where the sum of bounded updates does not wrap; and modulo 2^256.

A client's update is clipped to norm C, so that each of its numbers lies in [-C, C], and its weight
is a fraction of the largest one. A sum over n clients then lies in [-n C, n C], for which the
2^32 values are divided evenly. Rounding is to the nearest level: it moves each number of a sum over
p parties by at most p C / (2 L), for L levels in C.

Statistics, whose size no setting bounds, are wide numbers: of eight words, the lowest first, with a
unit of 2^-100. Their sums neither wrap nor round: what float64 holds is exact from 2^-48 on.
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

WORDS: Final = 8
"""Words of a wide number."""

_PLACES: Final = 100  # binary ones behind the point
_LARGEST: Final = 2.0**128  # of one number: so many parties do not exist that a sum wraps
_BYTES: Final = 4 * WORDS
_LOW: Final = np.uint64(2**32 - 1)


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


def widen(values: Floats) -> Words:
    """Returns numbers, shape (n,), in words, shape (n, WORDS).

    Raises:
        ValueError: A number is not finite, or beyond 2^128.
    """
    require(bool((np.abs(values) < _LARGEST).all()), "sums", "others", "finite, and below 2^128")
    whole = (round(value) for value in (values * 2.0**_PLACES).tolist())
    data = b"".join(value.to_bytes(_BYTES, "little", signed=True) for value in whole)
    return np.frombuffer(data, "<u4").astype(np.uint32).reshape(-1, WORDS)


def narrow(words: Words) -> Floats:
    """Returns the numbers, shape (n,), that words stand for, each rounded once."""
    each = (row.astype("<u4").tobytes() for row in words)
    return np.array([int.from_bytes(row, "little", signed=True) / 2**_PLACES for row in each])


def add(one: Words, other: Words) -> Words:
    """Adds modulo 2^32, or modulo 2^256 numbers of the shape (n, WORDS)."""
    if one.ndim == 1:
        return one + other
    sums, carry = np.zeros_like(one), np.zeros(len(one), np.uint64)
    for k, (left, right) in enumerate(zip(one.T, other.T, strict=True)):
        whole = left.astype(np.uint64) + right + carry
        sums[:, k], carry = whole & _LOW, whole >> np.uint64(32)
    return sums


def subtract(one: Words, other: Words) -> Words:
    """Subtracts likewise."""
    if one.ndim == 1:
        return one - other
    unit = np.eye(1, WORDS, dtype=np.uint32)
    return add(add(one, ~other), unit.repeat(len(one), axis=0))
