"""Baseline policies: random play and epsilon-greedy."""

import numpy as np

from engram.bandits.linucb import LinearState, ridge_policy
from engram.bandits.policy import Policy, best
from engram.bandits.ridge import Ridge, check_ridge, optimistic
from engram.core.arrays import Array
from engram.core.checks import require


def random_play() -> Policy[tuple[()]]:
    """Plays each arm with the same probability."""
    return Policy(
        init=lambda rng: (),
        choose=lambda state, user, arms, rng: (int(rng.integers(len(arms))), state),
        update=lambda state, user, x, reward, rng: state,
    )


def epsilon_greedy(
    dim: int, *, epsilon: float, lam: float, shared: bool = False
) -> Policy[LinearState]:
    """Plays argmax_x theta' x by the ridge estimate; with a fixed probability, a random arm.

    Args:
        dim: d, at least 1.
        epsilon: Probability of a random arm in each round, in [0, 1].
        lam: lambda > 0.
        shared: Whether users share one estimate or have one each.
    """
    check_ridge(dim, lam)
    require(0 <= epsilon <= 1, "epsilon", epsilon, "in [0, 1]")

    def choose(ridge: Ridge, arms: Array, rng: np.random.Generator) -> int:
        if rng.random() < epsilon:
            return int(rng.integers(len(arms)))
        return best(optimistic(ridge, arms, 0.0), rng)

    return ridge_policy(dim, lam, choose, shared=shared)
