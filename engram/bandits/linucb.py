"""LinUCB: one ridge estimate, or one for each user, and the largest upper confidence bound.

See ``ridge`` for the papers.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from engram.bandits.policy import Array, Policy, best
from engram.bandits.ridge import Ridge, check_ridge, fresh, observed, optimistic

__all__ = ["LinearState", "estimate", "linucb", "started", "updated"]


class LinearState(NamedTuple):
    """Ridge estimates of each user, or one of all users together.

    Attributes:
        unseen: Prior for unseen users.
        users: The estimate of each user seen so far, by number; a shared estimate is user 0's.
    """

    unseen: Ridge
    users: Mapping[int, Ridge]


def linucb(dim: int, *, alpha: float, lam: float, shared: bool = False) -> Policy[LinearState]:
    """Plays argmax_x theta' x + alpha sqrt(x' A^-1 x), A = lambda I + sum x x', theta = A^-1 b.

    Args:
        dim: d, at least 1.
        alpha: Width of the confidence bounds, at least 0.
        lam: lambda > 0.
        shared: Whether users share one estimate (ONE) or have one each (IND).
    """
    check_ridge(dim, lam, alpha=alpha)

    def choose(
        state: LinearState, user: int, arms: Array, rng: np.random.Generator
    ) -> tuple[int, LinearState]:
        return best(optimistic(estimate(state, user, shared), arms, alpha), rng), state

    return Policy(
        init=lambda rng: started(dim, lam),
        choose=choose,
        update=lambda state, user, x, reward, rng: updated(state, user, x, reward, shared),
    )


def started(dim: int, lam: float) -> LinearState:
    """Returns the state before the first round."""
    return LinearState(fresh(dim, lam), {})


def estimate(state: LinearState, user: int, shared: bool) -> Ridge:
    """Returns the estimate that a user is served by."""
    return state.users.get(0 if shared else user, state.unseen)


def updated(state: LinearState, user: int, x: Array, reward: float, shared: bool) -> LinearState:
    """Returns the state after one more row of a user."""
    learned = observed(estimate(state, user, shared), x, reward)
    return state._replace(users={**state.users, 0 if shared else user: learned})
