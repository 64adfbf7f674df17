"""Compiled projections, and steps of many learners at once.

A domain is given by four values, see ``domains.Domain``; its kinds are BALL, BOX and SIMPLEX.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engram.core.arrays import Array, Ints
from engram.online.compiled import compiled

Factor = npt.NDArray[np.floating[Any]]
Fixed = npt.NDArray[np.int8]

BALL: Final = 0
BOX: Final = 1
SIMPLEX: Final = 2

_MOST_STEPS: Final = 200  # of Newton's method, which takes some five


@compiled
def _distance(x: Array, y: Array) -> float:
    square = 0.0
    for i in range(len(x)):
        square += (x[i] - y[i]) ** 2
    length: float = np.sqrt(square)
    return length


@compiled
def pull(kind: int, anchor: Array, top: Array, size: float, y: Array) -> None:
    """Moves ``y``, shape (d,), to the nearest point of the domain."""
    if kind == BALL:
        length = _distance(y, anchor)
        if length > size:
            for i in range(len(y)):
                y[i] = anchor[i] + (y[i] - anchor[i]) * (size / length)
    elif kind == BOX:
        y[:] = np.minimum(np.maximum(y, anchor), top)
    else:
        # Michelot (1986): max(excess - shift, 0), with the shift that makes the sum right, is found
        # by leaving out those that come out at 0 until there are no more. (To sort takes long to
        # compile.)
        excess = y - anchor
        excess -= np.max(excess)  # far away the sum would be lost in rounding otherwise
        total = size - np.sum(anchor)
        count, shift = 0, -np.inf
        for _ in range(len(excess) + 1):
            left, sum_ = 0, 0.0
            for one in excess:
                if one > shift:
                    left += 1
                    sum_ += one
            shift = (sum_ - total) / max(left, 1)  # none is left of what is not finite
            if left == count:
                break
            count = left
        y[:] = anchor + np.maximum(excess - shift, 0.0)


@compiled
def _add_product(sum_: Array, scale: float, metric: Array, v: Array) -> None:
    """Adds scale U v for a symmetric U; for few coordinates this is faster than calling BLAS."""
    for i in range(len(v)):
        row, share = metric[i], scale * v[i]
        for j in range(len(v)):
            sum_[j] += share * row[j]


@compiled
def _solve_triangles(lower: Factor, b: Array, half: bool) -> Array:
    """Solves L z = b, and then, unless ``half``, L' x = z."""
    n = len(b)
    z = np.empty_like(b)
    for i in range(n):
        row, left = lower[i], b[i]
        for j in range(i):
            left -= row[j] * z[j]
        z[i] = left / row[i]
    if not half:
        for i in range(n - 1, -1, -1):
            row = lower[i]
            share = z[i] / row[i]
            z[i] = share
            for j in range(i):
                z[j] -= row[j] * share
    return z


@compiled
def _pull_to_ball(anchor: Array, size: float, y: Array, metric: Array, inverse: Array) -> None:
    """Newton's method on the secular equation |s(nu)| = size, (U + nu I) s(nu) = U (y - anchor).

    In the form 1 / size - 1 / |s| it is nearly linear, and from nu = 0, where s is y - anchor,
    Newton steps never overshoot (More and Sorensen, 1983).
    """
    length = _distance(y, anchor)
    if length <= size:
        return
    s = y - anchor
    right, w = np.zeros_like(s), np.zeros_like(s)
    _add_product(right, 1.0, metric, s)
    _add_product(w, 1.0, inverse, s)
    fall = np.dot(s, w)  # s' (U + nu I)^-1 s
    shifted = metric.copy()
    for _ in range(_MOST_STEPS):
        step = length**2 / fall * (length - size) / size
        before = shifted[0, 0]
        for i in range(len(y)):
            shifted[i, i] += step
        if shifted[0, 0] == before:
            break
        lower = np.linalg.cholesky(shifted)
        s = _solve_triangles(lower, right, False)
        length = np.sqrt(np.dot(s, s))
        if length <= size * (1 + 1e-12):
            break
        w = _solve_triangles(lower, s, True)
        fall = np.dot(w, w)
    y[:] = anchor + s * (size / length)


@compiled
def _free_step(metric: Array, gradient: Array, free: Ints, summed: bool) -> tuple[Array, float]:
    """Returns the step to the best point if only ``free`` coordinates move, and the multiplier.

    The multiplier is that of the sum constraint: the gradient of all free coordinates after the
    step.
    """
    n = len(free)
    part = np.empty((n, n))
    for a in range(n):
        for b in range(n):
            part[a, b] = metric[free[a], free[b]]
    lower = np.linalg.cholesky(part)
    step = _solve_triangles(lower, -gradient[free], False)
    level = 0.0
    if summed:
        ones = _solve_triangles(lower, np.ones(n), False)
        level = -np.sum(step) / np.sum(ones)
        step += level * ones
    return step, level


@compiled
def _move(anchor: Array, top: Array, x: Array, fixed: Fixed, free: Ints, step: Array) -> None:
    """Moves ``x`` along ``step`` up to the first limit, and fixes the coordinate that meets it."""
    length, met = 1.0, -1
    for a in range(len(free)):
        i = free[a]
        limit = anchor[i] if step[a] < 0 else top[i]
        if (x[i] + length * step[a] - limit) * step[a] > 0:
            length, met = (limit - x[i]) / step[a], a
    for a in range(len(free)):
        x[free[a]] += length * step[a]
    if met >= 0:
        i = free[met]
        fixed[i] = -1 if step[met] < 0 else 1
        x[i] = anchor[i] if step[met] < 0 else top[i]


@compiled
def _pull_to_polytope(
    anchor: Array, top: Array, summed: bool, y: Array, metric: Array, start: Array
) -> None:
    """A primal active-set method for limits, and for a fixed sum that ``start`` satisfies.

    The problem is strictly convex, so no set of active limits recurs (Nocedal and Wright, Algorithm
    16.3). From a point near the solution few changes are needed.
    """
    d = len(y)
    x = np.minimum(np.maximum(start, anchor), top)
    fixed = np.zeros(d, dtype=np.int8)  # -1 at the lower limit, 1 at the upper one
    for i in range(d):
        fixed[i] = -1 if x[i] <= anchor[i] else (1 if x[i] >= top[i] else 0)
    for _ in range(50 * d + _MOST_STEPS):
        gradient = metric @ (x - y)
        free = np.flatnonzero(fixed == 0)
        level = 0.0
        if len(free) > 0:
            step, level = _free_step(metric, gradient, free, summed)
            if np.max(np.abs(step)) > 1e-14 * (1 + np.max(np.abs(x))):
                _move(anchor, top, x, fixed, free, step)
                continue
        worst, loosened = 1e-12 * (1 + np.max(np.abs(gradient))), -1
        for i in range(d):
            pull = fixed[i] * (gradient[i] - level)
            if pull > worst:
                worst, loosened = pull, i
        if loosened < 0:
            break
        fixed[loosened] = 0
    y[:] = x


@compiled
def pull_in_norm(
    kind: int,
    anchor: Array,
    top: Array,
    size: float,
    y: Array,
    metric: Array,
    inverse: Array,
    start: Array,
) -> None:
    """Moves ``y`` to the point x of the domain with the least (x - y)' U (x - y).

    ``metric`` is U, symmetric and positive definite, shape (d, d), and ``inverse`` its inverse.
    ``start`` is a point of the domain, preferably near the solution; ``Domain`` has the other
    arguments.
    """
    if kind == BALL:
        _pull_to_ball(anchor, size, y, metric, inverse)
    else:
        _pull_to_polytope(anchor, top, kind == SIMPLEX, y, metric, start)


@compiled
def descend(
    kind: int,
    anchor: Array,
    top: Array,
    size: float,
    centers: Array,
    gradients: Array,
    steps: Array,
) -> Array:
    """Returns Pi[center - step gradient] of each learner: shapes (N, d), (N, d), (N,)."""
    moved = np.empty_like(centers)
    for i in range(len(centers)):
        for j in range(len(anchor)):
            moved[i, j] = centers[i, j] - steps[i] * gradients[i, j]
        pull(kind, anchor, top, size, moved[i])
    return moved


@compiled
def descend_in_norm(
    kind: int,
    anchor: Array,
    top: Array,
    size: float,
    centers: Array,
    gradients: Array,
    metrics: Array,
    inverses: Array,
) -> Array:
    """Returns Pi_U[center - U^-1 gradient] of each learner: (N, d), (N, d), (N, d, d)."""
    moved = centers.copy()
    for i in range(len(centers)):
        _add_product(moved[i], -1.0, inverses[i], gradients[i])
        pull_in_norm(kind, anchor, top, size, moved[i], metrics[i], inverses[i], centers[i])
    return moved


@compiled
def add_outer(
    metrics: Array, inverses: Array, scales: Array, directions: Array
) -> tuple[Array, Array]:
    """Adds scale v v' to each matrix, and updates its inverse (Sherman and Morrison)."""
    metrics, inverses = metrics.copy(), inverses.copy()
    d = metrics.shape[1]
    w = np.empty(d)
    for k in range(len(metrics)):
        v, scale = directions[k], scales[k]
        w[:] = 0
        _add_product(w, 1.0, inverses[k], v)
        share = scale / (1 + scale * np.dot(v, w))
        for i in range(d):
            row, inverse_row = metrics[k, i], inverses[k, i]
            for j in range(d):  # products first: the same number on both sides of the diagonal
                row[j] += scale * (v[i] * v[j])
                inverse_row[j] -= share * (w[i] * w[j])
    return metrics, inverses
