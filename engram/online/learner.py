"""What a learner is: functions on an explicit state, so that learners can be made of learners.

In each round t = 1, 2, ... a learner names a decision x_t of its domain, and then learns the
gradient g_t of that round's loss f_t there. Its regret is sum f_t(x_t) - min_x sum f_t(x) (1.1).
"""

from collections.abc import Callable
from math import sqrt
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from engram.checks import require

__all__ = ["Clipped", "Learner", "checked", "clipped", "positive"]

Array = npt.NDArray[np.float64]
S = TypeVar("S")

_ROUNDING = 1e-9  # by which a gradient may exceed its bound


class Learner(NamedTuple, Generic[S]):
    """A learner, as pure functions: states are tuples of numbers and arrays, and never changed.

    Attributes:
        dim: Coordinates d of a decision.
        init: ``start -> state``, before the first round; ``start``, shape (d,), is a first decision
            in the domain, None its middle.
        act: ``state -> x``, the decision of this round, shape (d,).
        observe: ``(state, gradients) -> state``, after it: the gradients at ``points``, shape
            (n, d), or (d,) if there is one point. Raises ``ValueError``, with the state as it was,
            if they are not finite, of another shape, or longer than the learner was told.
        points: ``state -> (n, d)``: where it wants the gradient of this round's loss; the first is
            its decision, and mostly there is no other.
    """

    dim: int
    init: Callable[[Array | None], S]
    act: Callable[[S], Array]
    observe: Callable[[S, Array], S]
    points: Callable[[S], Array]


def checked(gradients: Array, shape: tuple[int, ...], bound: float = np.inf) -> Array:
    """Returns the gradients as float64, in ``shape``.

    Args:
        gradients: Of a round.
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
    """A learner's state, and how often it was lied to.

    Attributes:
        state: The learner's own.
        times: Gradients that were too long so far.
    """

    state: S
    times: int


def clipped(learner: Learner[S], bound: float) -> Learner[Clipped[S]]:
    """Returns the learner that scales gradients longer than ``bound`` down to it, and counts them.

    Args:
        learner: Told of the same bound.
        bound: G > 0.
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
