"""Fixed point modulo 2^256, where sums of numbers without a bound neither wrap nor round.

A number takes eight words, the lowest first, and its unit is 2^-100: what float64 holds is exact
from 2^-48 on. Sums of statistics need it, whose size no setting bounds.
"""

from typing import Final

import numpy as np

from engram.core.checks import require
from engram.guards.secure.quantize import Floats, Words

WORDS: Final = 8
"""Words of a number."""

_PLACES: Final = 100  # binary ones behind the point
_LARGEST: Final = 2.0**128  # of one number: so many parties do not exist that a sum wraps
_BYTES: Final = 4 * WORDS
_LOW: Final = np.uint64(2**32 - 1)


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
