"""The trimmed mean of each coordinate: the center that Xu and Bastani's estimator takes."""

import numpy as np
import numpy.typing as npt
from scipy.stats import trim_mean

from engram.checks import require

__all__ = ["trimmed_mean"]

Array = npt.NDArray[np.float64]


def trimmed_mean(values: Array, proportion: float) -> Array:
    """Averages each coordinate over the tasks, without its largest and its smallest values.

    Args:
        values: Shape (M, d), one row a task.
        proportion: Of the tasks that are left out at either end, rounded down; in [0, 0.5).

    Returns:
        Shape (d,).
    """
    require(values.ndim == 2 and len(values) > 0, "values.shape", values.shape, "(M, d)")
    require(0 <= proportion < 0.5, "proportion", proportion, "in [0, 0.5)")
    return np.asarray(trim_mean(values, proportion, axis=0))
