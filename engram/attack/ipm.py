"""Inner-product manipulation: attackers send the others' mean with its sign flipped.

Xie, Koyejo, Gupta. Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation.
UAI 2019. The scale is its epsilon. With a small one the forged updates are short and near
each other, which Krum and medians take for consent; with a large one the mean turns round.
"""

from engram.core.types import Params


def forged(own: Params, honest: Params) -> Params:
    """Returns ``-mean_j d_j`` over the honest changes d_j; see ``engram.attack.Forge``."""
    return {name: (-x.mean(0)).expand_as(own[name]).to(own[name]) for name, x in honest.items()}
