"""LinUCB, epsilon-greedy and random play, with one estimate for all users, or one for each.

See ``ridge`` for the papers.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from engram.bandits.policy import Policy, best
from engram.bandits.ridge import Ridge, check_ridge, fresh, observed, optimistic
from engram.core.arrays import Array
from engram.core.checks import require


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
    return _ridge_policy(
        dim, lam, shared, lambda ridge, arms, rng: best(optimistic(ridge, arms, alpha), rng)
    )


def epsilon_greedy(
    dim: int, *, epsilon: float, lam: float, shared: bool = False
) -> Policy[LinearState]:
    """Plays argmax_x theta' x by the ridge estimate; with probability epsilon, a random arm.

    ``epsilon`` is in [0, 1]; for the rest see ``linucb``.
    """
    check_ridge(dim, lam)
    require(0 <= epsilon <= 1, "epsilon", epsilon, "in [0, 1]")

    def choose(ridge: Ridge, arms: Array, rng: np.random.Generator) -> int:
        if rng.random() < epsilon:
            return int(rng.integers(len(arms)))
        return best(optimistic(ridge, arms, 0.0), rng)

    return _ridge_policy(dim, lam, shared, choose)


def random_play() -> Policy[tuple[()]]:
    """Plays each arm with the same probability."""
    return Policy(
        init=lambda rng: (),
        choose=lambda state, user, arms, rng: (int(rng.integers(len(arms))), state),
        update=lambda state, user, x, reward, rng: state,
    )


def _ridge_policy(
    dim: int, lam: float, shared: bool, choose: Callable[[Ridge, Array, np.random.Generator], int]
) -> Policy[LinearState]:
    def estimate(state: LinearState, user: int) -> Ridge:
        return state.users.get(0 if shared else user, state.unseen)

    def update(
        state: LinearState, user: int, x: Array, reward: float, _: np.random.Generator
    ) -> LinearState:
        learned = observed(estimate(state, user), x, reward)
        return state._replace(users={**state.users, 0 if shared else user: learned})

    return Policy(
        init=lambda rng: LinearState(fresh(dim, lam), {}),
        choose=lambda state, user, arms, rng: (choose(estimate(state, user), arms, rng), state),
        update=update,
    )
