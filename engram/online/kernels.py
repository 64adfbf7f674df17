"""The arithmetic of the learners, compiled, on many of them at once.

All compiled code is in this file, and must be: numba keeps what it has compiled on disk, and takes
it for current as long as the function's own file is, whatever became of the files that it calls.

A domain is described by four values, see ``domains.Domain``; its kinds are BALL, BOX and SIMPLEX.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = [
    "BALL",
    "BOX",
    "SIMPLEX",
    "add_outer",
    "descend",
    "descend_in_norm",
    "equalize",
    "project",
    "project_in_norm",
    "tilt",
    "weigh",
]

Array = npt.NDArray[np.float64]
Factor = npt.NDArray[np.floating[Any]]
Fixed = npt.NDArray[np.int8]
Indices = npt.NDArray[np.intp]
Function = TypeVar("Function", bound=Callable[..., object])

BALL, BOX, SIMPLEX = 0, 1, 2

_MOST_STEPS = 200  # of Newton's method, which takes some five


def _compiled(function: Function) -> Function:
    """Compiles a function, and keeps what came of it where there is a place for that."""
    try:
        kept: Any = njit(cache=True)(function)
    except RuntimeError:  # no folder can be written to
        kept = njit(function)
    return cast("Function", kept)  # which has the same signature


@_compiled
def project(kind: int, anchor: Array, top: Array, size: float, y: Array) -> Array:
    """Returns the point of the domain that is nearest to ``y``, shape (d,)."""
    if kind == BALL:
        offset = y - anchor
        length = np.sqrt(np.sum(offset * offset))
        if length <= size:
            return y.copy()
        on_sphere: Array = anchor + offset * (size / length)
        return on_sphere
    if kind == BOX:
        return np.minimum(np.maximum(y, anchor), top)
    # Michelot (1986): max(excess - shift, 0), with the shift that makes the sum right, is found by
    # leaving out those that come out at 0 until there are no more. (To sort takes long to compile.)
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
        shift = (sum_ - total) / left
        if left == count:
            break
        count = left
    return anchor + np.maximum(excess - shift, 0.0)


@_compiled
def _solve_triangles(lower: Factor, b: Array, half: bool) -> Array:
    """Solves L z = b, and then, unless ``half``, L' x = z."""
    n = len(b)
    z = b.copy()
    for i in range(n):
        for j in range(i):
            z[i] -= lower[i, j] * z[j]
        z[i] /= lower[i, i]
    if not half:
        for i in range(n - 1, -1, -1):
            for j in range(i + 1, n):
                z[i] -= lower[j, i] * z[j]
            z[i] /= lower[i, i]
    return z


@_compiled
def _project_on_ball(anchor: Array, size: float, y: Array, metric: Array) -> Array:
    """Newton's method on the secular equation |s(nu)| = size, (U + nu I) s(nu) = U (y - anchor).

    In the form 1 / size - 1 / |s| it is nearly linear, and from nu = 0 steps never go too far
    (More and Sorensen, 1983).
    """
    offset = y - anchor
    if np.sqrt(np.sum(offset * offset)) <= size:
        return y.copy()
    right = metric @ offset
    shifted = metric.copy()
    for _ in range(_MOST_STEPS):
        lower = np.linalg.cholesky(shifted)
        s = _solve_triangles(lower, right, False)
        length = np.sqrt(np.sum(s * s))
        if length <= size * (1 + 1e-14):
            break
        w = _solve_triangles(lower, s, True)
        step = length**2 / np.sum(w * w) * (length - size) / size
        before = shifted[0, 0]
        for i in range(len(y)):
            shifted[i, i] += step
        if shifted[0, 0] == before:
            break
    nearest: Array = anchor + s * (size / length)
    return nearest


@_compiled
def _free_step(metric: Array, slope: Array, free: Indices, summed: bool) -> tuple[Array, float]:
    """Returns the step to the best point if only ``free`` coordinates move, and the multiplier.

    The multiplier is that of the sum: the slope of all free coordinates, once they are there.
    """
    n = len(free)
    part = np.empty((n, n))
    for a in range(n):
        for b in range(n):
            part[a, b] = metric[free[a], free[b]]
    lower = np.linalg.cholesky(part)
    step = _solve_triangles(lower, -slope[free], False)
    level = 0.0
    if summed:
        ones = _solve_triangles(lower, np.ones(n), False)
        level = -np.sum(step) / np.sum(ones)
        step += level * ones
    return step, level


@_compiled
def _move(anchor: Array, top: Array, x: Array, fixed: Fixed, free: Indices, step: Array) -> None:
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


@_compiled
def _project_on_polytope(
    anchor: Array, top: Array, summed: bool, y: Array, metric: Array, start: Array
) -> Array:
    """A primal active-set method for limits, and a sum that ``start`` has.

    Strictly convex, so each set of active limits is met once (Nocedal and Wright, Algorithm 16.3).
    From a point near the solution few sets differ.
    """
    d = len(y)
    x = np.minimum(np.maximum(start, anchor), top)
    fixed = np.zeros(d, dtype=np.int8)  # -1 at the lower limit, 1 at the upper one
    for i in range(d):
        fixed[i] = -1 if x[i] <= anchor[i] else (1 if x[i] >= top[i] else 0)
    for _ in range(50 * d + _MOST_STEPS):
        slope = metric @ (x - y)
        free = np.flatnonzero(fixed == 0)
        level = 0.0
        if len(free) > 0:
            step, level = _free_step(metric, slope, free, summed)
            if np.max(np.abs(step)) > 1e-14 * (1 + np.max(np.abs(x))):
                _move(anchor, top, x, fixed, free, step)
                continue
        worst, loosened = 1e-12 * (1 + np.max(np.abs(slope))), -1
        for i in range(d):
            pull = fixed[i] * (slope[i] - level)
            if pull > worst:
                worst, loosened = pull, i
        if loosened < 0:
            break
        fixed[loosened] = 0
    return x


@_compiled
def project_in_norm(
    kind: int, anchor: Array, top: Array, size: float, y: Array, metric: Array, start: Array
) -> Array:
    """Returns the point x of the domain with the least (x - y)' U (x - y).

    Args:
        kind: The domain's, and so on.
        anchor: As ``Domain`` has it.
        top: As ``Domain`` has it.
        size: As ``Domain`` has it.
        y: Shape (d,).
        metric: U, symmetric and positive definite, shape (d, d).
        start: Some point of the domain, best near the solution.
    """
    if kind == BALL:
        return _project_on_ball(anchor, size, y, metric)
    return _project_on_polytope(anchor, top, kind == SIMPLEX, y, metric, start)


@_compiled
def descend(
    kind: int,
    anchor: Array,
    top: Array,
    size: float,
    centers: Array,
    slopes: Array,
    steps: Array,
) -> Array:
    """Returns Pi[center - step slope] of each learner: shapes (N, d), (N, d), (N,)."""
    moved = np.empty_like(centers)
    for i in range(len(centers)):
        moved[i] = project(kind, anchor, top, size, centers[i] - steps[i] * slopes[i])
    return moved


@_compiled
def descend_in_norm(
    kind: int,
    anchor: Array,
    top: Array,
    size: float,
    centers: Array,
    slopes: Array,
    metrics: Array,
    inverses: Array,
) -> Array:
    """Returns Pi_U[center - U^-1 slope], in the norm of U, of each: (N, d), (N, d), (N, d, d)."""
    moved = np.empty_like(centers)
    for i in range(len(centers)):
        y = centers[i] - inverses[i] @ slopes[i]
        moved[i] = project_in_norm(kind, anchor, top, size, y, metrics[i], centers[i])
    return moved


@_compiled
def add_outer(
    metrics: Array, inverses: Array, scales: Array, directions: Array
) -> tuple[Array, Array]:
    """Adds scale v v' to each matrix, and brings its inverse along (Sherman and Morrison)."""
    metrics, inverses = metrics.copy(), inverses.copy()
    d = metrics.shape[1]
    for k in range(len(metrics)):
        v = directions[k]
        w = inverses[k] @ v
        share = scales[k] / (1 + scales[k] * np.sum(v * w))
        for i in range(d):
            for j in range(i + 1):  # the same number on both sides, or rounding breaks symmetry
                metrics[k, i, j] += scales[k] * v[i] * v[j]
                metrics[k, j, i] = metrics[k, i, j]
                inverses[k, i, j] -= share * w[i] * w[j]
                inverses[k, j, i] = inverses[k, i, j]
    return metrics, inverses


@_compiled
def tilt(logs: Array, losses: Array) -> Array:
    """Returns log p, normalized in each row, of p proportional to exp(logs - losses): (K, N)."""
    tilted = logs - losses
    for k in range(len(tilted)):
        highest = np.max(tilted[k])
        tilted[k] -= highest + np.log(np.sum(np.exp(tilted[k] - highest)))
    return tilted


@_compiled
def equalize(logs: Array, steps: Array, losses: Array) -> Array:
    """Solves ``min_p <losses, p> + sum_i D_i(p_i, q_i) / eta_i`` on the simplex, D of entropy.

    p_i = q_i exp(-eta_i (losses_i + nu)): the steps differ, and so nu is a root, which Newton's
    method finds on log sum p, convex and falling in nu, without going too far to its right.

    Args:
        logs: log q, shape (N,).
        steps: eta > 0, shape (N,).
        losses: Shape (N,).

    Returns:
        log p, shape (N,).
    """
    nu = -np.min(losses)
    for _ in range(_MOST_STEPS):
        terms = logs - steps * (losses + nu)
        highest = np.max(terms)
        weights = np.exp(terms - highest)
        sum_ = np.sum(weights)
        excess = highest + np.log(sum_)
        if np.abs(excess) <= 1e-15:
            break
        before = nu
        nu += excess * sum_ / np.sum(weights * steps)
        if nu == before:
            break
    return logs - steps * (losses + nu)


@_compiled
def _squared_distances(x: Array, y: Array) -> Array:
    found = np.zeros(len(x))
    for i in range(len(x)):
        for j in range(x.shape[1]):
            found[i] += (x[i, j] - y[i, j]) ** 2
    return found


@_compiled
def _add_rows(sum_: Array, weights: Array, rows: Array) -> None:
    for i in range(len(weights)):
        for j in range(len(sum_)):
            sum_[j] += weights[i] * rows[i, j]


@_compiled
def weigh(
    here: Array,
    there: Array,
    slopes: Array,
    before: Array,
    moves: Array,
    mid_moves: Array,
    mid_logs: Array,
    top_logs: Array,
    mid_weights: Array,
    mid_decisions: Array,
    steps: Array,
    lambda_1: float,
    lambda_2: float,
    bias: float,
    unit: float,
) -> tuple[Array, Array, Array, Array, Array, Array, Array, Array]:
    """Lines 5 and 6 of Algorithm 1: both layers of weights learn from the round, and look ahead.

    Where all losses, or all of optimism, have the same number added, weights stay the same, and so
    <g, x> is left out: of this round, and of the next, which nobody knows.

    Args:
        here: Base learners' decisions x_i in this round, shape (N, d).
        there: In the next.
        slopes: <g, x_i - x>, shape (N,).
        before: Of the round before.
        moves: |x_i - x_i before|^2, shape (N,).
        mid_moves: |x_k - x_k before|^2 of the middle layer's decisions, shape (K,).
        mid_logs: log p-hat, but for a number in each row, shape (K, N).
        top_logs: log q-hat, shape (K,).
        mid_weights: p, shape (K, N).
        mid_decisions: x_k, shape (K, d).
        steps: eta_k, shape (K,).
        lambda_1: Weight of the top layer's correction.
        lambda_2: Of the middle layers'.
        bias: What times eta (l - m)^2 is added to losses.
        unit: What losses are multiplied by, 1 / (G D).

    Returns:
        For the next round ``moves``, ``mid_moves``, ``mid_logs``, ``top_logs``, ``mid_weights``,
        ``mid_decisions``; and q, shape (K,), and x, shape (d,).
    """
    surprise = unit * (slopes - before)  # losses - optimism; corrections cancel
    losses = unit * (slopes + lambda_2 * moves)
    moves = _squared_distances(there, here)
    hints = unit * (slopes + lambda_2 * moves)
    top_losses, top_hints = np.empty_like(steps), np.empty_like(steps)
    mid_logs, seen = mid_logs.copy(), mid_decisions
    mid_weights, mid_decisions = mid_weights.copy(), np.zeros_like(seen)
    for k in range(len(steps)):
        p, logs, eta = mid_weights[k], mid_logs[k], 2 * steps[k]
        expected = unit * np.dot(p, slopes) + unit * lambda_1 * mid_moves[k]
        top_losses[k] = expected + bias * steps[k] * np.dot(p, surprise) ** 2
        for i in range(len(p)):
            logs[i] -= eta * losses[i] + bias * (eta * surprise[i]) ** 2
        logs -= np.max(logs)  # or they would grow, and lose digits
        sum_, highest = 0.0, np.max(logs - eta * hints)
        for i in range(len(p)):
            p[i] = np.exp(logs[i] - eta * hints[i] - highest)
            sum_ += p[i]
        p /= sum_
        _add_rows(mid_decisions[k], p, there)
    mid_moves = _squared_distances(mid_decisions, seen)
    top_logs = equalize(top_logs, steps, top_losses)
    for k in range(len(steps)):
        top_hints[k] = unit * np.dot(mid_weights[k], slopes) + unit * lambda_1 * mid_moves[k]
    top_weights = np.exp(equalize(top_logs, steps, top_hints))
    decision = np.zeros(here.shape[1])
    _add_rows(decision, top_weights, mid_decisions)
    return (
        moves,
        mid_moves,
        mid_logs,
        top_logs,
        mid_weights,
        mid_decisions,
        top_weights,
        decision,
    )
