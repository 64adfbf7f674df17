"""Scaled updates: attackers go their honest way, ten times as far by ``attack=scaled:10``.

Bagdasaryan et al. How To Backdoor Federated Learning. AISTATS 2020, Eq. 3: with as many times as
there are clients, one attacker's model replaces the mean. Behind a backdoor it makes it stick.
"""

from engram.core.types import Params


def forged(own: Params, honest: Params) -> Params:
    """Returns the honest changes, which the simulation scales; see ``engram.attack.Forge``."""
    del honest
    return own
