"""Rows of simulated tasks."""

import numpy as np
from scipy.special import expit

from engram.core.arrays import Array
from engram.tables.site import Rows


def linear_rows(
    rng: np.random.Generator, beta: Array, size: int, sigma: float, root: Array | None = None
) -> Rows:
    """Draws a task's rows: x ~ N(0, root' root) and y = <x, beta> + N(0, sigma^2).

    Args:
        rng: Source of randomness.
        beta: Shape (d,).
        size: n_m, at least 1.
        sigma: Standard deviation of the noise, at least 0.
        root: Shape (d, d). None: the identity.
    """
    x = rng.standard_normal((size, len(beta)))
    x = x if root is None else x @ root
    return Rows(x, x @ beta + sigma * rng.standard_normal(size))


def logistic_rows(rng: np.random.Generator, beta: Array, size: int) -> Rows:
    """Draws a task's rows: x ~ N(0, I), and y = 1 with probability 1 / (1 + exp(-<x, beta>))."""
    x = rng.standard_normal((size, len(beta)))
    return Rows(x, (rng.random(size) < expit(x @ beta)).astype(np.float64))
