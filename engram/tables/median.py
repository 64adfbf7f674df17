"""The weighted median of each coordinate, which a minority cannot move far."""

import numpy as np

from engram.core.arrays import Array
from engram.core.checks import require


def weighted_median(values: Array, weights: Array) -> Array:
    """Minimizes ``sum_m weights[m, k] |z - values[m, k]|`` over z, for each coordinate k.

    If a whole interval is minimal (some values have half of the weight, up to rounding), its
    midpoint is returned, since an end would be biased. The result depends neither on the order of
    the rows nor on the scale of the weights, and a row of weight c counts as c rows.

    Args:
        values: Shape (M, d), one row per task. Values of weight 0 are ignored.
        weights: Shape (M,) or (M, d), finite, at least 0, and not all 0 in any coordinate.

    Returns:
        Shape (d,).

    Raises:
        ValueError: If the shapes disagree, a weight is out of range, or a value of positive weight
            is NaN.
    """
    require(values.ndim == 2, "values.shape", values.shape, "(M, d)")
    weights = np.asarray(weights, dtype=np.float64)
    shapes = (values.shape[:1], values.shape)
    require(weights.shape in shapes, "weights.shape", weights.shape, f"{shapes[0]} or {shapes[1]}")
    require(bool(np.isfinite(weights).all() and (weights >= 0).all()), "weights", weights, ">= 0")
    # Coordinates become rows, which lie together in memory: sorting them is twice as fast.
    columns = np.ascontiguousarray(values.T)
    own = np.ascontiguousarray(np.broadcast_to(weights.T, columns.shape))
    require(not np.isnan(columns[own > 0]).any(), "values", "NaN", "numbers, where they count")
    most = own.max(axis=1, keepdims=True)  # beside it, so that sums are neither 0 nor infinite
    own = np.divide(own, most, out=np.zeros_like(own), where=most > 0)
    order = np.argsort(np.where(own > 0, columns, np.inf), axis=1, kind="stable")
    mass = np.cumsum(np.take_along_axis(own, order, axis=1), axis=1)
    total = mass[:, -1:]
    none = np.flatnonzero(total[:, 0] == 0)
    require(not len(none), "weights", f"0 for all of coordinate {none[:1]}", "positive for a row")
    # The first rows at which half of the weight is reached, and passed. Sums of weights are
    # rounded: the slack keeps a tie a tie when weights are scaled, or come in another order.
    slack = 4 * len(values) * np.finfo(np.float64).eps
    ends = []
    for place in ((mass < total * (0.5 - slack)).sum(1), (mass <= total * (0.5 + slack)).sum(1)):
        rows = np.take_along_axis(order, place[:, None], axis=1)
        ends.append(np.take_along_axis(columns, rows, axis=1)[:, 0])
    low, high = ends
    return np.where(low == high, low, low / 2 + high / 2)


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
    return np.asarray(np.where(kept, ordered, 0.0).sum(axis=0) / (known - 2 * cut))
