"""Collaborative bandits: policies for many users, in the manner of `policy`."""

from typing import TYPE_CHECKING

from engram.lazy import attach

if TYPE_CHECKING:
    from engram.bandits.club import club as club
    from engram.bandits.cofiba import cofiba as cofiba
    from engram.bandits.linucb import epsilon_greedy as epsilon_greedy
    from engram.bandits.linucb import linucb as linucb
    from engram.bandits.linucb import random_play as random_play
    from engram.bandits.locb import locb as locb
    from engram.bandits.logged import logged as logged
    from engram.bandits.logged import replay as replay
    from engram.bandits.meta_ban import MetaBan as MetaBan
    from engram.bandits.meta_ban import meta_ban as meta_ban
    from engram.bandits.molar import molar as molar
    from engram.bandits.neural import NeuralBandit as NeuralBandit
    from engram.bandits.neural import neural_bandit as neural_bandit
    from engram.bandits.play import play_policy as play_policy
    from engram.bandits.policy import Policy as Policy
    from engram.bandits.policy import PolicyServer as PolicyServer
    from engram.bandits.policy import policy_server as policy_server
    from engram.bandits.sclub import sclub as sclub

__getattr__, __dir__, __all__ = attach(__name__, __file__)
