"""Online learners, as functions on an explicit state, and pools of base learners.

In each round t = 1, 2, ... a learner chooses a decision x_t in its domain, and then observes the
gradient g_t of that round's loss f_t at x_t. Regret is sum f_t(x_t) - min_x sum f_t(x) (1.1).

A pool advances N learners of a kind at once. Each has a center, from which it takes one projected
step along this round's gradient. An optimistic learner's decision is one step further, along the
gradient that it expects next: the same one again (Rakhlin and Sridharan, 2013).
"""

from collections.abc import Callable
from math import sqrt
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from engram.core.arrays import Array
from engram.core.checks import require
from engram.online.domains import Domain
from engram.online.steps import add_outer, descend, descend_in_norm

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
    limit = f"at most the declared bound G = {bound:g}"
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


def started(domain: Domain, start: Array | None) -> Array:
    """Returns the initial decision: ``start``, or the domain's center.

    Raises:
        ValueError: If ``start`` is not in the domain.
    """
    if start is None:
        return domain.center
    given = np.array(start, dtype=np.float64)
    require(given.shape == (domain.dim,), "start's shape", given.shape, f"({domain.dim},)")
    distance = domain.distance(given)
    require(domain.contains(given), "start's distance from the domain", distance, "0")
    return domain.project(given)


# --- Pools ---------------------------------------------------------------------------------


class Pool(NamedTuple, Generic[S]):
    """N learners with the same domain, as pure functions."""

    init: Callable[[Array], S]  # ``start -> state``, from a decision of shape (d,)
    decisions: Callable[[S], Array]  # ``state -> (N, d)``
    # ``(state, gradients) -> state``; gradients at the decisions, shape (N, d).
    observe: Callable[[S, Array], S]


class Descent(NamedTuple):
    """State of a pool of gradient descents."""

    t: int  # this round, from 1
    centers: Array  # shape (N, d)
    decisions: Array  # shape (N, d)
    gradients: Array  # gradients of the last round, shape (N, d)
    variations: Array  # V_t-1, the sum of squared changes of gradients between rounds, shape (N,)
    steps: Array  # step sizes eta_t, shape (N,)


def descent_pool(
    domain: Domain, size: int, step: Callable[[int, Array], Array], *, optimistic: bool
) -> Pool[Descent]:
    """Builds (E.4): center <- Pi[center - eta_t g_t], decision = Pi[center - eta_t m_t].

    Args:
        domain: The set of decisions.
        size: N.
        step: ``(t, V_t-1) -> eta_t``, shape (N,).
        optimistic: Whether m_t is g_t-1 rather than 0.
    """

    def init(start: Array) -> Descent:
        rows = np.tile(start, (size, 1))
        none = np.zeros(size)
        return Descent(1, rows, rows, np.zeros_like(rows), none, step(1, none))

    def observe(state: Descent, gradients: Array) -> Descent:
        t, centers, _, before, variations, steps = state
        moved = descend(*domain, centers, gradients, steps)
        if t > 1:
            changes = gradients - before
            variations = variations + np.vecdot(changes, changes)
        steps = step(t + 1, variations)
        decisions = descend(*domain, moved, gradients, steps) if optimistic else moved
        return Descent(t + 1, moved, decisions, gradients, variations, steps)

    return Pool(init, lambda state: state.decisions, observe)


class Newton(NamedTuple):
    """State of a pool of learners, each with its own norm."""

    centers: Array  # shape (N, d)
    decisions: Array  # shape (N, d)
    metrics: Array  # U, shape (N, d, d)
    inverses: Array  # U^-1, shape (N, d, d)


def newton_pool(domain: Domain, ridges: Array, scales: Array, *, optimistic: bool) -> Pool[Newton]:
    """Builds steps in growing norms: center <- Pi_U[center - U^-1 g_t], U = r I + c sum g g'.

    An optimistic learner steps in the norm of the gradients before this one (Lemma 11), and then
    once more. Other learners step in the norm that includes this gradient (online Newton step).

    Args:
        domain: The set of decisions.
        ridges: r > 0, shape (N,).
        scales: c > 0, shape (N,).
        optimistic: Whether learners are optimistic.
    """

    def init(start: Array) -> Newton:
        eye = np.eye(domain.dim)  # here, since a pool that is never used may be of many coordinates
        rows = np.tile(start, (len(ridges), 1))
        return Newton(rows, rows, ridges[:, None, None] * eye, eye / ridges[:, None, None])

    def observe(state: Newton, gradients: Array) -> Newton:
        centers, _, metrics, inverses = state
        if not optimistic:
            metrics, inverses = add_outer(metrics, inverses, scales, gradients)
            moved = descend_in_norm(*domain, centers, gradients, metrics, inverses)
            return Newton(moved, moved, metrics, inverses)
        moved = descend_in_norm(*domain, centers, gradients, metrics, inverses)
        metrics, inverses = add_outer(metrics, inverses, scales, gradients)
        decisions = descend_in_norm(*domain, moved, gradients, metrics, inverses)
        return Newton(moved, decisions, metrics, inverses)

    return Pool(init, lambda state: state.decisions, observe)


def vectorized(pool: Pool[S], domain: Domain, bound: float = np.inf) -> Learner[S]:
    """Combines N learners into one that needs gradients at all N decisions.

    So N learners that differ in a parameter play the same stream at once.
    Gradients longer than ``bound``, G, are refused.
    """

    def observe(state: S, gradients: Array) -> S:
        shape = pool.decisions(state).shape
        given = checked(gradients, shape if shape[0] > 1 else shape[1:], bound)
        return pool.observe(state, given.reshape(shape))

    return Learner(
        dim=domain.dim,
        init=lambda start: pool.init(started(domain, start)),
        act=lambda state: pool.decisions(state)[0].copy(),
        observe=observe,
        points=lambda state: pool.decisions(state).copy(),
    )
