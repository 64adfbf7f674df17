"""Learners for an unknown number of rounds or gradient bound: the doubling trick.

Whenever the rounds that a learner was built for are over, or a gradient exceeds its bound, a new
learner is built for twice as much, and continues from the last decision. Compared with a learner
that knows T and G, regret grows by a constant factor if it is a power of T, and by the number of
epochs, log T, if it is of order log T.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from engram.core.arrays import Array
from engram.core.checks import require
from engram.online.learner import Learner, checked

S = TypeVar("S")

_FIRST = 64  # rounds of the first epoch, where T is unknown


class Epoch(NamedTuple, Generic[S]):
    """State of a learner in epochs."""

    state: S  # state of this epoch's learner
    horizon: int  # number of rounds that the learner was built for
    rounds: int  # number of these that have been played
    bound: float  # G that the learner was built for; 0 as long as all gradients were 0
    number: int  # number of epochs so far, this one included


def in_epochs(
    make: Callable[[int, float], Learner[S]],
    *,
    horizon: int | None = None,
    gradient_bound: float | None = None,
) -> Learner[Epoch[S]]:
    """Builds a learner that need not know T, G, or both.

    Args:
        make: ``(T, G) -> learner``.
        horizon: T >= 1, if known.
        gradient_bound: G > 0, if known; longer gradients are then refused.

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
