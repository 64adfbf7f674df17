"""False statistics: attackers lie about weights and denominators, within what could be true.

An update whose claims are impossible is left out (``engram.core.claims``). What is left to an
attacker is to choose another model than its own, to claim next to no rows of classes of whose
representation it then tells much, and to call itself very precise or very important.
"""

from collections.abc import Mapping
from typing import Final

from engram.core.method import Claim
from engram.types import Params

_TINY: Final = 1e-6
_HUGE: Final = 1e6


def forged(claims: Mapping[str, Claim], sent: Params) -> Params:
    """Returns attackers' arrays, by path and with a leading axis of attackers, with false claims.

    Shares next to sums become a millionth, so that means of classes seem a million times as long;
    shares by themselves, of choices, move on by one; an amount becomes a million times as large.
    A ``square``, which says how imprecise means are, becomes 0. Other arrays stay.
    """
    false = dict(sent)
    for path, claim in claims.items():
        slot, _, name = path.rpartition("/")
        if claim == "amount":
            false[path] = sent[path] * (0.0 if name == "square" else _HUGE)
        elif claim == "shares" and f"{slot}/sums" in claims:
            false[path] = sent[path] * _TINY
        elif claim == "shares":
            false[path] = sent[path].roll(1, -1)
    return false
