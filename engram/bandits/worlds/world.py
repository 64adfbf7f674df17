"""What a world is: what the users of one run meet, a function of its seed and the round alone."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from engram.bandits.policy import ROUND, WORLD, Array, generator
from engram.checks import require

__all__ = ["Round", "World", "checked_length", "drawing", "setting"]


class Round(NamedTuple):
    """What there is in a round.

    Attributes:
        user: Who is served, of 0, ..., users - 1.
        arms: What is offered, shape (K, d).
        means: Expected reward of each for this user, by which regret counts (2), shape (K,).
        rewards: What each would pay now, in [0, 1], shape (K,). That of the arm chosen is all
            that a policy may see.
    """

    user: int
    arms: Array
    means: Array
    rewards: Array


class World(NamedTuple):
    """The rounds t = 0, ..., T - 1 of a run; each is made when it is asked for, and not kept.

    Attributes:
        horizon: T.
        users: How many there are; not all of them need ever be served.
        arms: K.
        dim: d.
        round: ``t -> Round``, the same whenever it is asked.
        expected_rewards: ``t -> (K, users)``, what every user would expect of the arms of round t, whoever
            is served: so relative groups (Definition 3.1) are known. None where there is no such
            thing.
    """

    horizon: int
    users: int
    arms: int
    dim: int
    round: Callable[[int], Round]
    expected_rewards: Callable[[int], Array] | None = None


def checked_length(horizon: int, arms: int) -> None:
    """Refuses a world without rounds, or arms."""
    require(horizon >= 1, "horizon", horizon, "at least 1")
    require(arms >= 1, "arms", arms, "at least 1")


def setting(seed: int) -> np.random.Generator:
    """Returns what draws a world before its first round."""
    return generator(seed, 0, WORLD)


def drawing(seed: int, t: int) -> np.random.Generator:
    """Returns what draws round t."""
    return generator(seed, t, ROUND)
