"""False statistics: attackers flip signs, and lie about weights and denominators as they can.

An update whose claims are impossible is left out (``engram.guards.claimed_ranges``). What is left
to an attacker is to call its own representation the opposite of what it is, to spoil another model
than the one it has trained, and to call itself very precise or very important.
"""

from collections.abc import Mapping
from typing import Final

from engram.core.method import Claim
from engram.core.types import Params

_HUGE: Final = 1e6


def forged(claims: Mapping[str, Claim], own: Params, scale: float) -> Params:
    """Returns the changes that attackers send, by path and with a leading axis of attackers.

    An amount becomes a million times as large. A ``square``, which says how imprecise the means
    beside it are, becomes 0; these means stay, so that it is believed. Shares of choices move on by
    one, others stay. Everything else becomes ``-scale`` times as much: models, sums, differences.

    Args:
        claims: The method's claims.
        own: The changes that they would send honestly; of statistics, these themselves.
        scale: How many times as far as they honestly would they go.
    """
    found: Params = {}
    for path, x in own.items():
        slot, claim = path.rpartition("/")[0], claims.get(path)
        if claim == "amount":
            found[path] = x * (0.0 if path.endswith("square") else _HUGE)
        elif claim == "shares":
            found[path] = x if f"{slot}/sums" in claims else x.roll(1, -1)
        else:
            believed = claim == "sums" and f"{slot}/square" in claims
            found[path] = x if believed else -scale * x
    return found
