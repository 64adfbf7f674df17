"""Parameters of simulated tasks that differ from each other in few coordinates (Section 4.1)."""

import numpy as np
import numpy.typing as npt

from engram.checks import require

__all__ = ["sparse_parameters"]

Array = npt.NDArray[np.float64]


def sparse_parameters(rng: np.random.Generator, tasks: int, dim: int, differing: int) -> Array:
    """Draws parameters that satisfy Condition 1: each is that of all tasks but in s coordinates.

    beta* is uniform on the unit sphere. For each task s coordinates are drawn anew, from a
    Gaussian, and scaled to the norm of the values that they replace; so every task's parameter
    has norm 1. (Scaling the whole vector instead would change all of its coordinates. Where s = 1,
    a value can only change its sign.)

    Args:
        rng: What is drawn from.
        tasks: M, at least 1.
        dim: d, at least 1.
        differing: s, from 0 to d.

    Returns:
        Shape (M, d).
    """
    require(tasks >= 1, "tasks", tasks, "at least 1")
    require(0 <= differing <= dim, "differing", differing, f"in [0, {dim}]")
    shared = rng.normal(size=dim)
    shared /= np.linalg.norm(shared)
    coefs = np.tile(shared, (tasks, 1))
    for own in coefs:
        places = rng.choice(dim, differing, replace=False)
        drawn = rng.normal(size=differing)
        own[places] = drawn / np.linalg.norm(drawn) * np.linalg.norm(shared[places])
    return coefs
