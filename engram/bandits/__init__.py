"""Collaborative bandits: policies for many users, in the manner of `policy`."""

from typing import TYPE_CHECKING

from engram.lazy import attach

if TYPE_CHECKING:
    from engram.bandits.meta_ban import MetaBan
    from engram.bandits.neural import NeuralBandit, neural_bandit
    from engram.bandits.play import play_policy
    from engram.bandits.policy import Policy, PolicyServer, policy_server
    from engram.bandits.simple import epsilon_greedy, random_play

__all__ = [
    "MetaBan",
    "NeuralBandit",
    "Policy",
    "PolicyServer",
    "epsilon_greedy",
    "neural_bandit",
    "play_policy",
    "policy_server",
    "random_play",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "MetaBan": "engram.bandits.meta_ban",
        "NeuralBandit": "engram.bandits.neural",
        "Policy": "engram.bandits.policy",
        "PolicyServer": "engram.bandits.policy",
        "epsilon_greedy": "engram.bandits.simple",
        "neural_bandit": "engram.bandits.neural",
        "play_policy": "engram.bandits.play",
        "policy_server": "engram.bandits.policy",
        "random_play": "engram.bandits.simple",
    },
)
