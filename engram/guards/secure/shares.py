"""Shares of secrets: any ``threshold`` of them give the secret, and fewer tell nothing.

The secret is the constant term of a random polynomial of degree ``threshold - 1`` over the field of
the Mersenne prime 2^521 - 1, of which each holder has the value at a point of its own (Shamir. How
to Share a Secret. CACM 1979).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from engram.core.checks import require

PRIME: Final = 2**521 - 1
SECRET: Final = 32
"""Bytes of a secret."""
SHARE: Final = 66
"""Bytes of a share."""

Entropy = Callable[[int], bytes]
"""A source of that many secret, uniform bytes, such as ``os.urandom``."""


def split(
    secret: bytes, holders: Sequence[int], threshold: int, entropy: Entropy
) -> dict[int, bytes]:
    """Returns each holder's share of a secret.

    Args:
        secret: 32 bytes.
        holders: Different numbers >= 0; a share is the polynomial's value at the number plus 1.
        threshold: How many shares give the secret; in 1..len(holders).
        entropy: Source of the coefficients.

    Raises:
        ValueError: An argument is out of range.
    """
    require(len(secret) == SECRET, "secret", len(secret), f"of {SECRET} bytes")
    require(len({*holders}) == len(holders), "holders", holders, "different")
    require(min(holders) >= 0, "holders", holders, "0 or more")
    require(1 <= threshold <= len(holders), "threshold", threshold, f"in 1..{len(holders)}")
    # 521 random bits are uniform in the field, but for zero, which is 2^-521 more likely.
    others = [int.from_bytes(entropy(SHARE)) >> 7 for _ in range(threshold - 1)]
    falling = [*reversed(others), int.from_bytes(secret)]
    found = {}
    for holder in holders:
        value = 0
        for coefficient in falling:  # Horner's rule
            value = (value * (holder + 1) + coefficient) % PRIME
        found[holder] = value.to_bytes(SHARE)
    return found


def join(shares: Mapping[int, bytes]) -> bytes:
    """Returns the secret of as many shares as the threshold says, by holder.

    Raises:
        ValueError: They are not shares of one secret of 32 bytes, as far as that can be seen.
    """
    total = 0
    for weight, share in zip(_weights(tuple(shares)), shares.values(), strict=True):
        require(len(share) == SHARE, "share", len(share), f"of {SHARE} bytes")
        total = (total + weight * int.from_bytes(share)) % PRIME
    fits = total < 1 << 8 * SECRET
    require(fits, "shares", f"{len(shares)} of others", "shares of one secret")
    return total.to_bytes(SECRET)


@lru_cache(maxsize=8)  # the same holders answer for all secrets of a round
def _weights(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Returns Lagrange's weights of the polynomial's values at these points, for that at 0."""
    points = [holder + 1 for holder in holders]
    found = list[int]()
    for x in points:
        above, below = 1, 1
        for other in points:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(found)
