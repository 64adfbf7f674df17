"""Online learners, as functions on an explicit state, so that learners can be composed.

In each round t = 1, 2, ... a learner chooses a decision x_t in its domain, and then observes the
gradient g_t of that round's loss f_t at x_t. Regret is sum f_t(x_t) - min_x sum f_t(x) (1.1).
"""

from collections.abc import Callable
from math import sqrt
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from engram.core.arrays import Array
from engram.core.checks import require

S = TypeVar("S")

_ROUNDING = 1e-9  # by which a gradient may exceed its bound


class Learner(NamedTuple, Generic[S]):
    """A learner, as pure functions; states are tuples of numbers and arrays, and never changed.

    Attributes:
        dim: Dimension d of decisions.
        init: ``start -> state``, before the first round; ``start``, shape (d,), is the initial
            decision, None for the domain's center.
        act: ``state -> x``, the decision of this round, shape (d,).
        observe: ``(state, gradients) -> state``, the state after observing the gradients at
            ``points``, shape (n, d), or (d,) if there is one point. Raises ``ValueError``, without
            changing the state, if gradients are not finite, have another shape, or exceed the
            bound.
        points: ``state -> (n, d)``: the points at which it needs gradients of this round's loss.
            The first is its decision; most learners need no other.
    """

    dim: int
    init: Callable[[Array | None], S]
    act: Callable[[S], Array]
    observe: Callable[[S, Array], S]
    points: Callable[[S], Array]


def checked(gradients: Array, shape: tuple[int, ...], bound: float = np.inf) -> Array:
    """Checks gradients and returns them as float64.

    Args:
        gradients: Gradients of a round.
        shape: (d,), or (n, d).
        bound: The largest Euclidean norm G of each.

    Raises:
        ValueError: If they have another shape, are not finite, or exceed ``bound``.
    """
    try:
        given = np.asarray(gradients, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the gradient must be numbers, got {gradients!r}") from error
    require(given.shape == shape, "the gradient's shape", given.shape, f"{shape}")
    longest = _longest(given)
    require(bool(np.isfinite(longest)), "the gradient's norm", longest, "finite")
    limit = f"at most the declared bound G = {bound:g}; see online.learner.clipped"
    require(longest <= bound * (1 + _ROUNDING), "the gradient's norm", longest, limit)
    return given


def positive(**numbers: float) -> None:
    """Raises ``ValueError`` unless each number is finite and positive, naming it."""
    for name, value in numbers.items():
        ok = isinstance(value, (int, float, np.number)) and 0 < value < np.inf
        require(ok, name, value, "finite and positive")


@np.errstate(over="ignore")  # a norm beyond float64's range is refused, and need not be told twice
def _longest(gradients: Array) -> float:
    if gradients.ndim == 1:  # the usual case, and a quarter of the time
        return sqrt(gradients @ gradients)
    return float(np.sqrt(np.max(np.sum(gradients * gradients, axis=-1))))


class Clipped(NamedTuple, Generic[S]):
    """A learner's state, and how many gradients exceeded the bound."""

    state: S  # the learner's own state
    times: int  # number of gradients so far that exceeded the bound


def clipped(learner: Learner[S], bound: float) -> Learner[Clipped[S]]:
    """Returns a learner that scales gradients longer than ``bound`` down to it, and counts them.

    The learner is built for the same bound, G > 0.
    """
    positive(bound=bound)

    def observe(kept: Clipped[S], gradients: Array) -> Clipped[S]:
        given = checked(gradients, np.shape(gradients))
        length = np.sqrt(np.sum(given * given, axis=-1, keepdims=True))
        long = length > bound
        fitting = np.where(long, given * (bound / np.where(long, length, 1.0)), given)
        return Clipped(learner.observe(kept.state, fitting), kept.times + int(long.sum()))

    return Learner(
        dim=learner.dim,
        init=lambda start: Clipped(learner.init(start), 0),
        act=lambda kept: learner.act(kept.state),
        observe=observe,
        points=lambda kept: learner.points(kept.state),
    )
