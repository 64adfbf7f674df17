"""Signs flipped: attackers go as far as they honestly would, in the opposite direction."""

from engram.core.tree import multiplied
from engram.core.types import Params


def forged(own: Params, honest: Params) -> Params:
    """Returns ``-d_i`` for each attacker's honest change d_i; see ``engram.attack.Forge``."""
    del honest
    return multiplied(own, -1.0)
