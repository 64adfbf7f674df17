"""A bandit environment: rounds that are a function of the seed and the round number alone."""

from collections.abc import Callable
from typing import NamedTuple

from engram.core.arrays import Array
from engram.core.checks import require


class Round(NamedTuple):
    """One round of an environment.

    Attributes:
        user: The user served, among 0, ..., users - 1.
        arms: The arms offered, shape (K, d).
        means: Expected reward of each arm for this user, by which regret is counted (2), shape
            (K,).
        rewards: The reward that each arm would pay, in [0, 1], shape (K,). A policy sees only that
            of the arm it plays.
    """

    user: int
    arms: Array
    means: Array
    rewards: Array


class Environment(NamedTuple):
    """The rounds t = 0, ..., T - 1 of a run; each is made on demand and not stored.

    Attributes:
        horizon: T.
        users: Number of users; some may never be served.
        arms: K.
        dim: d.
        round: ``t -> Round``, the same in every call.
        expected_rewards: ``t -> (K, users)``: every user's expected rewards of the arms of round t,
            whoever is served. They define the true relative groups (Definition 3.1). None if they
            are not defined.
    """

    horizon: int
    users: int
    arms: int
    dim: int
    round: Callable[[int], Round]
    expected_rewards: Callable[[int], Array] | None = None


def checked_length(horizon: int, arms: int) -> None:
    """Raises ``ValueError`` unless there is at least one round and one arm."""
    require(horizon >= 1, "horizon", horizon, "at least 1")
    require(arms >= 1, "arms", arms, "at least 1")
