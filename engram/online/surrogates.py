"""Surrogate losses of base learners that guess a curvature, from one gradient per round."""

from math import ceil, log2

import numpy as np

from engram.core.arrays import Array
from engram.online.compiled import compiled


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
