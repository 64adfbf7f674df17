"""Policies to be better than: random play, and the greedy one that explores at random."""

import numpy as np

from engram.bandits.linucb import Linear, estimate, started, updated
from engram.bandits.policy import Array, Core, best
from engram.bandits.ridge import check_ridge, optimistic
from engram.checks import require

__all__ = ["epsilon_greedy", "random_play"]


def random_play() -> Core[tuple[()]]:
    """Plays each arm with the same probability."""
    return Core(
        init=lambda rng: (),
        choose=lambda state, user, arms, rng: (int(rng.integers(len(arms))), state),
        update=lambda state, user, x, reward, rng: state,
    )


def epsilon_greedy(dim: int, *, epsilon: float, lam: float, shared: bool = False) -> Core[Linear]:
    """Plays argmax_x theta' x, of the ridge estimate; with a fixed probability, any arm.

    Args:
        dim: d, at least 1.
        epsilon: The probability, in [0, 1], in every round.
        lam: lambda > 0.
        shared: Whether users share an estimate, or have one each.
    """
    check_ridge(dim, lam)
    require(0 <= epsilon <= 1, "epsilon", epsilon, "in [0, 1]")

    def choose(
        state: Linear, user: int, arms: Array, rng: np.random.Generator
    ) -> tuple[int, Linear]:
        if rng.random() < epsilon:
            return int(rng.integers(len(arms))), state
        return best(optimistic(estimate(state, user, shared), arms, 0.0), rng), state

    return Core(
        init=lambda rng: started(dim, lam),
        choose=choose,
        update=lambda state, user, x, reward, rng: updated(state, user, x, reward, shared),
    )
