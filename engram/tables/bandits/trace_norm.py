"""Trace-norm regularization (Cella et al., 2022): all tasks' parameters as one matrix of low rank.

Cella, Lounici, Pacreau, Pontil. Multi-task Representation Learning with Stochastic Linear Bandits.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from engram.core.arrays import Array

_TOLERANCE: Final = 1e-8  # of the largest coefficient: how far a last step may move one
_STEPS: Final = 5000


class LeastSquaresMoments(NamedTuple):
    """The moments of a task that determine its least squares problem."""

    gram: Array  # X'X / n, shape (d, d)
    cross: Array  # X'y / n, shape (d,)
    size: float  # n, > 0


def fit_trace_norm(tasks: Sequence[LeastSquaresMoments], c: float) -> Array:
    """Minimizes ``sum_m ||X_m b_m - y_m||^2 / (n_m lambda_m) + ||B||_*`` over B, shape (M, d).

    b_m are the rows of B, and lambda_m = c sqrt((M + d) / n_m). J.1 has a lambda for each task,
    although there is one penalty for all: in this problem's first-order conditions task m has
    lambda_m, and for tasks of equal size it is the usual problem. J.1 does not state the scale of
    the squares either. Halved, its c = 1 does worse than the OLS bandit in its own simulation,
    where Section 4.1 reports that it does better; so they are not halved here.

    Solved by accelerated proximal gradient steps with singular value thresholding, until a step
    moves no coefficient by more than 1e-8 of the largest, or for at most 5000 steps.
    """
    strengths = np.array([c * np.sqrt((len(tasks) + len(t.cross)) / t.size) for t in tasks])
    grams = 2 * np.stack([task.gram for task in tasks]) / strengths[:, None, None]
    cross = 2 * np.stack([task.cross for task in tasks]) / strengths[:, None]
    step = 1 / max(np.linalg.eigvalsh(grams)[:, -1].max(), np.finfo(np.float64).tiny)
    b: Array = np.zeros_like(cross)
    ahead, momentum = b, 1.0
    for _ in range(_STEPS):
        gradient = np.einsum("mij,mj->mi", grams, ahead) - cross
        new = _thresholded(ahead - step * gradient, step)
        if np.abs(new - ahead).max() <= _TOLERANCE * np.abs(new).max():
            return new
        if ((ahead - new) * (new - b)).sum() > 0:  # it has gone too far: begin anew from here
            momentum = 1.0
        faster = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = new + (momentum - 1) / faster * (new - b)
        b, momentum = new, faster
    return b


def _thresholded(b: Array, by: float) -> Array:
    """Reduces all singular values by ``by``, down to 0."""
    left, values, right = np.linalg.svd(b, full_matrices=False)
    return np.asarray(left * np.maximum(values - by, 0) @ right)
