"""Guesses of curvature, with surrogate losses, and compiled updates of experts' weights."""

from math import ceil, log2
from typing import Final

import numpy as np

from engram.core.arrays import Array
from engram.online.compiled import compiled

_MOST_STEPS: Final = 200  # of Newton's method, which takes some five


def curvatures(horizon: int) -> Array:
    """Returns the guesses of curvature (2.1): 1/T, 2/T, 4/T, ..., 1."""
    return np.minimum(2.0 ** np.arange(ceil(log2(horizon)) + 1) / horizon, 1.0)


@compiled
def surrogate_gradients(
    strong: Array, exp: Array, decisions: Array, played: Array, gradient: Array
) -> tuple[Array, Array]:
    """Returns the gradient of each base learner's surrogate loss (Section 4) at its decision x_i.

    All three kinds have the form h_i(y) = <g, y> + lambda_i / 2 |y - x|^2 + alpha_i / 2 <g, y -
    x>^2, where x is the decision that was played and g the gradient there. A learner for convex
    losses has lambda_i = alpha_i = 0, and the others have one of them positive.

    Args:
        strong: lambda_i >= 0, shape (N,).
        exp: alpha_i >= 0, shape (N,).
        decisions: x_i, shape (N, d).
        played: x, shape (d,).
        gradient: g, shape (d,).

    Returns:
        The linear losses <g, x_i - x>, shape (N,), and the gradients, shape (N, d).
    """
    linear_losses, gradients = np.empty_like(strong), np.empty_like(decisions)
    for i in range(len(decisions)):
        linear_loss = 0.0
        for j in range(len(played)):
            linear_loss += gradient[j] * (decisions[i, j] - played[j])
        for j in range(len(played)):
            along = (1 + exp[i] * linear_loss) * gradient[j]
            gradients[i, j] = along + strong[i] * (decisions[i, j] - played[j])
        linear_losses[i] = linear_loss
    return linear_losses, gradients


@compiled
def tilt(logs: Array, losses: Array) -> Array:
    """Returns log p, normalized in each row, of p proportional to exp(logs - losses): (K, N)."""
    tilted = logs - losses
    for k in range(len(tilted)):
        highest = np.max(tilted[k])
        tilted[k] -= highest + np.log(np.sum(np.exp(tilted[k] - highest)))
    return tilted


@compiled
def equalize(logs: Array, steps: Array, losses: Array) -> Array:
    """Solves ``min_p <losses, p> + sum_i D_i(p_i, q_i) / eta_i`` on the simplex, D of entropy.

    p_i = q_i exp(-eta_i (losses_i + nu)). Since the steps differ, nu is the root of log sum p,
    which is convex and decreasing in nu, so that Newton's method finds it without overshooting.

    Returns:
        log p, shape (N,).
    """
    nu = -np.min(losses)
    terms = logs - steps * (losses + nu)
    for _ in range(_MOST_STEPS):
        highest = np.max(terms)
        sum_, fall = 0.0, 0.0
        for i in range(len(terms)):
            weight = np.exp(terms[i] - highest)
            sum_ += weight
            fall += weight * steps[i]
        excess = highest + np.log(sum_)
        before = nu
        nu += excess * sum_ / fall
        if np.abs(excess) <= 1e-15 or nu == before:
            break
        for i in range(len(terms)):
            terms[i] = logs[i] - steps[i] * (losses[i] + nu)
    return terms


@compiled
def _squared_distances(x: Array, y: Array) -> Array:
    found = np.zeros(len(x))
    for i in range(len(x)):
        for j in range(x.shape[1]):
            found[i] += (x[i, j] - y[i, j]) ** 2
    return found


@compiled
def _add_rows(sum_: Array, weights: Array, rows: Array) -> None:
    for i in range(len(weights)):
        for j in range(len(sum_)):
            sum_[j] += weights[i] * rows[i, j]


@compiled
def _learn(
    before: Array, eta: float, losses: Array, biases: Array, hints: Array, logs: Array, p: Array
) -> None:
    """Fills ``logs``, shifted to a maximum of 0 so that they lose no digits, and ``p``."""
    highest = -np.inf
    for i in range(len(p)):
        logs[i] = before[i] - (eta * losses[i] + eta**2 * biases[i])
        highest = max(highest, logs[i])
    ahead = -np.inf
    for i in range(len(p)):
        logs[i] -= highest
        p[i] = logs[i] - eta * hints[i]
        ahead = max(ahead, p[i])
    sum_ = 0.0
    for i in range(len(p)):
        p[i] = np.exp(p[i] - ahead)
        sum_ += p[i]
    for i in range(len(p)):
        p[i] /= sum_


@compiled
def weigh(
    here: Array,
    there: Array,
    linear_losses: Array,
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

    Adding a number to all losses or to all optimistic terms does not change weights. So <g, x> is
    left out, for this round and for the next, in which it is unknown.

    Args are base learners' decisions x_i in this round and in the next, shape (N, d); their linear
    losses <g, x_i - x>, shape (N,); seven parts of the state from ``slopes`` to ``mid_decisions``,
    as ``universal.Universal`` has them; eta_k, shape (K,); the weights of the top layer's and of
    the middle layers' correction; the factor ``bias`` of eta (l - m)^2, which is added to losses;
    and that of losses, 1 / (G D).

    Returns:
        For the next round ``moves``, ``mid_moves``, ``mid_logs``, ``top_logs``, ``mid_weights``,
        ``mid_decisions``; and q, shape (K,), and x, shape (d,).
    """
    surprise = unit * (linear_losses - before)  # losses - optimism; corrections cancel
    losses, biases = unit * (linear_losses + lambda_2 * moves), bias * surprise**2
    moves = _squared_distances(there, here)
    hints = unit * (linear_losses + lambda_2 * moves)
    top_losses, top_hints = np.empty_like(steps), np.empty_like(steps)
    logs, seen = np.empty_like(mid_logs), mid_decisions
    weights, mid_decisions = np.empty_like(mid_weights), np.zeros_like(seen)
    for k in range(len(steps)):
        p, eta = mid_weights[k], 2 * steps[k]
        expected = unit * np.dot(p, linear_losses) + unit * lambda_1 * mid_moves[k]
        top_losses[k] = expected + bias * steps[k] * np.dot(p, surprise) ** 2
        _learn(mid_logs[k], eta, losses, biases, hints, logs[k], weights[k])
        _add_rows(mid_decisions[k], weights[k], there)
    mid_moves = _squared_distances(mid_decisions, seen)
    top_logs = equalize(top_logs, steps, top_losses)
    for k in range(len(steps)):
        top_hints[k] = unit * np.dot(weights[k], linear_losses) + unit * lambda_1 * mid_moves[k]
    top_weights = np.exp(equalize(top_logs, steps, top_hints))
    decision = np.zeros(here.shape[1])
    _add_rows(decision, top_weights, mid_decisions)
    return moves, mid_moves, logs, top_logs, weights, mid_decisions, top_weights, decision
