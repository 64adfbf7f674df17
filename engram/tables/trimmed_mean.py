"""The trimmed mean of each coordinate, the global estimate of RM (Xu and Bastani, 2024)."""

import numpy as np

from engram.core.arrays import Array
from engram.core.checks import require


def trimmed_mean(values: Array, proportion: float) -> Array:
    """Returns the trimmed mean of each coordinate, shape (d,).

    Of m values, ``floor(proportion * m)`` are left out at either end: three at either end for 30
    tasks and a proportion of 0.1.

    Args:
        values: Shape (M, d), one row per task. NaN where a task does not determine a coordinate,
            which reduces that coordinate's m.
        proportion: In [0, 0.5); 0 gives the mean. J.1 has 0.1.

    Raises:
        ValueError: If the proportion is out of range, the shape is wrong, or no task determines
            some coordinate.
    """
    require(values.ndim == 2, "values.shape", values.shape, "(M, d)")
    require(0 <= proportion < 0.5, "proportion", proportion, "in [0, 0.5)")
    known = (~np.isnan(values)).sum(axis=0)
    none = np.flatnonzero(known == 0)
    require(not len(none), "values", f"NaN for all of coordinate {none[:1]}", "known to a task")
    # Rounded first: 0.29 * 100 is 28.999999999999996.
    cut = np.minimum(np.floor(np.round(proportion * known, 9)), (known - 1) // 2)
    ordered = np.sort(values, axis=0)  # NaN last
    place = np.arange(len(values))[:, None]
    kept = (place >= cut) & (place < known - cut)
    mean: Array = np.where(kept, ordered, 0.0).sum(axis=0) / (known - 2 * cut)
    return mean
