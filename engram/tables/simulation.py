"""The simulated tasks of the paper's experiments (Section 4.1, Appendix J.3.2)."""

import numpy as np
import numpy.typing as npt
from scipy.stats import ortho_group

from engram.core.arrays import Array
from engram.core.checks import require


def sparse_parameters(rng: np.random.Generator, tasks: int, dim: int, differing: int) -> Array:
    """Draws parameters that satisfy Condition 1: each task differs from beta* in s coordinates.

    beta* is uniform on the unit sphere. For each task, s coordinates are redrawn from a Gaussian
    and scaled to the norm of the values that they replace, so every task's parameter has norm 1.
    (Scaling the whole vector would change all of its coordinates. With s = 1, a value can only
    change its sign.)

    Args:
        rng: Source of randomness. The first tasks do not depend on the number of tasks.
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


def spread_root(rng: np.random.Generator, dim: int) -> Array:
    """Draws a root A of a covariance A'A = Q diag(1 + 4 (k - 1) / d) Q' (J.3.2), shape (d, d).

    Q is uniform on the orthogonal matrices. Rows of z A, with z of shape (n, d) standard normal,
    have that covariance; its eigenvalues go from 1 to nearly 5.
    """
    q = ortho_group.rvs(dim, random_state=rng) if dim > 1 else np.ones((1, 1))
    return np.sqrt(1 + 4 * np.arange(dim) / dim)[:, None] * q.T


def disparate_sizes(
    rng: np.random.Generator, tasks: int, mean: float, least: int
) -> npt.NDArray[np.int64]:
    """Draws sizes n_m = round(M n z_m) with z uniform on the simplex, none below ``least`` (J.3.2).

    z is a Dirichlet vector of ones of length M (the paper writes d, which is a slip). Most such
    vectors leave some task with fewer rows than coefficients, so that OLS is undefined. This draws
    z conditional on at least ``least`` rows per task: each task gets ``least`` rows, and the others
    are divided by a vector uniform on the simplex.

    Args:
        rng: Source of randomness.
        tasks: M, at least 1.
        mean: n, the mean over tasks up to rounding; at least ``least``.
        least: Minimum number of rows per task; more than d for OLS to be defined.

    Returns:
        Shape (M,).

    Raises:
        ValueError: If the mean is below ``least``.
    """
    require(mean >= least, "mean", mean, f"at least {least}, the fewest that a task may have")
    share = rng.dirichlet(np.ones(tasks))
    return np.rint(least + tasks * (mean - least) * share).astype(np.int64)
