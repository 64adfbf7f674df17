"""Baseline policies: random play and epsilon-greedy."""

import numpy as np

from engram.bandits.linucb import LinearState, estimate, started, updated
from engram.bandits.policy import Array, Policy, best
from engram.bandits.ridge import check_ridge, optimistic
from engram.checks import require

__all__ = ["epsilon_greedy", "random_play"]


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

    def choose(
        state: LinearState, user: int, arms: Array, rng: np.random.Generator
    ) -> tuple[int, LinearState]:
        if rng.random() < epsilon:
            return int(rng.integers(len(arms))), state
        return best(optimistic(estimate(state, user, shared), arms, 0.0), rng), state

    return Policy(
        init=lambda rng: started(dim, lam),
        choose=choose,
        update=lambda state, user, x, reward, rng: updated(state, user, x, reward, shared),
    )
