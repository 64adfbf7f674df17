"""What base learners that guess a curvature learn from, if there is one gradient a round."""

from math import ceil, log2

import numpy as np
import numpy.typing as npt

__all__ = ["curvatures", "surrogate_gradients"]

Array = npt.NDArray[np.float64]


def curvatures(horizon: int) -> Array:
    """Returns the pool (2.1): 1/T, 2/T, 4/T, ..., 1."""
    return np.minimum(2.0 ** np.arange(ceil(log2(horizon)) + 1) / horizon, 1.0)


def surrogate_gradients(
    strong: Array, exp: Array, offsets: Array, slopes: Array, gradient: Array
) -> Array:
    """Returns the gradient of each base learner's surrogate loss (Section 4), at its decision x_i.

    All three are of the form h_i(y) = <g, y> + lambda_i / 2 |y - x|^2 + alpha_i / 2 <g, y - x>^2,
    where x is the decision that was played and g the gradient there; a learner for convex losses
    has neither lambda_i nor alpha_i, the others one of them.

    Args:
        strong: lambda_i >= 0, shape (N,).
        exp: alpha_i >= 0, shape (N,).
        offsets: x_i - x, shape (N, d).
        slopes: <g, x_i - x>, shape (N,).
        gradient: g, shape (d,).

    Returns:
        Shape (N, d).
    """
    return np.outer(1 + exp * slopes, gradient) + strong[:, None] * offsets
