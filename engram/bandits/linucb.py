"""LinUCB: one ridge estimate, or one of each user, and the largest upper confidence bound.

Papers as in ``ridge``.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from engram.bandits.policy import Array, Core, best
from engram.bandits.ridge import Ridge, check_ridge, fresh, observed, optimistic

__all__ = ["Linear", "estimate", "linucb", "started", "updated"]


class Linear(NamedTuple):
    """What is known of each user, or of all together.

    Attributes:
        unseen: Of who has not been seen.
        users: Of each who has, by number; of all as user 0, where they share an estimate.
    """

    unseen: Ridge
    users: Mapping[int, Ridge]


def linucb(dim: int, *, alpha: float, lam: float, shared: bool = False) -> Core[Linear]:
    """Plays argmax_x theta' x + alpha sqrt(x' A^-1 x), A = lambda I + sum x x', theta = A^-1 b.

    Args:
        dim: d, at least 1.
        alpha: How wide its confidence is; at least 0.
        lam: lambda > 0.
        shared: Whether users share an estimate (ONE), or have one each (IND).
    """
    check_ridge(dim, lam, alpha=alpha)

    def choose(
        state: Linear, user: int, arms: Array, rng: np.random.Generator
    ) -> tuple[int, Linear]:
        return best(optimistic(estimate(state, user, shared), arms, alpha), rng), state

    return Core(
        init=lambda rng: started(dim, lam),
        choose=choose,
        update=lambda state, user, x, reward, rng: updated(state, user, x, reward, shared),
    )


def started(dim: int, lam: float) -> Linear:
    """Returns what is known before the first round."""
    return Linear(fresh(dim, lam), {})


def estimate(state: Linear, user: int, shared: bool) -> Ridge:
    """Returns the estimate that a user is served by."""
    return state.users.get(0 if shared else user, state.unseen)


def updated(state: Linear, user: int, x: Array, reward: float, shared: bool) -> Linear:
    """Returns what is known after one more row of a user."""
    learned = observed(estimate(state, user, shared), x, reward)
    return state._replace(users={**state.users, 0 if shared else user: learned})
