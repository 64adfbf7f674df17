"""Learners that are not told how long the game is, or how steep losses are: they start over.

Each time the rounds that a learner was made for are over, or a gradient is longer than it was told,
it is made anew for twice of that, and goes on from the decision that it had come to. Regret is that
of a learner who knew, times at most a constant where it grows as a power of T, and times the number
of epochs, log T, where it grows as log T.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from engram.checks import require
from engram.online.learner import Learner, checked

__all__ = ["Epoch", "in_epochs"]

Array = npt.NDArray[np.float64]
S = TypeVar("S")

_FIRST = 64  # rounds of the first epoch, where T is unknown


class Epoch(NamedTuple, Generic[S]):
    """State of a learner in epochs.

    Attributes:
        state: Of the learner of this epoch.
        horizon: Rounds that it was made for.
        rounds: Of these, played.
        bound: G that it was made for; 0 as long as all gradients were 0.
        number: Epochs so far, this one included.
    """

    state: S
    horizon: int
    rounds: int
    bound: float
    number: int


def in_epochs(
    make: Callable[[int, float], Learner[S]],
    *,
    horizon: int | None = None,
    gradient_bound: float | None = None,
) -> Learner[Epoch[S]]:
    """Builds a learner that needs not know T, or G, or both.

    Args:
        make: ``(T, G) -> learner``, such as ``partial(universal_ensemble, domain)`` with names.
        horizon: T >= 1, if it is known.
        gradient_bound: G > 0, if it is known. Longer gradients are refused then.

    Raises:
        ValueError: If an argument is out of range.
    """
    first = _FIRST if horizon is None else horizon
    made = lru_cache(maxsize=4)(make)

    def init(start: Array | None) -> Epoch[S]:
        state = made(first, gradient_bound or 1.0).init(start)
        return Epoch(state, first, 0, gradient_bound or 0.0, 1)

    def learner(kept: Epoch[S]) -> Learner[S]:
        return made(kept.horizon, kept.bound or 1.0)

    def begin(kept: Epoch[S], horizon: int, bound: float, number: int) -> Epoch[S]:
        state = made(horizon, bound).init(learner(kept).act(kept.state))
        return Epoch(state, horizon, 0, bound, number)

    def observe(kept: Epoch[S], gradients: Array) -> Epoch[S]:
        if gradient_bound is None:
            given = checked(gradients, np.shape(gradients))
            longest = float(np.sqrt(np.max(np.sum(given * given, axis=-1))))
            if longest > kept.bound:
                fresh = kept.rounds == 0  # nothing is lost by starting over
                kept = begin(kept, kept.horizon, 2 * longest, kept.number + (not fresh))
        state = learner(kept).observe(kept.state, gradients)
        kept = kept._replace(state=state, rounds=kept.rounds + (kept.bound > 0))
        if horizon is None and kept.rounds == kept.horizon:
            kept = begin(kept, 2 * kept.horizon, kept.bound, kept.number + 1)
        return kept

    require(gradient_bound is None or gradient_bound > 0, "gradient_bound", gradient_bound, "> 0")
    require(first >= 1, "horizon", horizon, "at least 1")
    return Learner(
        dim=made(first, gradient_bound or 1.0).dim,
        init=init,
        act=lambda kept: learner(kept).act(kept.state),
        observe=observe,
        points=lambda kept: learner(kept).points(kept.state),
    )
