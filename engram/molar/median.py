"""The weighted median of each coordinate: what a minority cannot move far."""

import numpy as np
import numpy.typing as npt

from engram.checks import require

__all__ = ["weighted_median"]

Array = npt.NDArray[np.float64]


def weighted_median(values: Array, weights: Array) -> Array:
    """Minimizes ``sum_m weights[m, k] |z - values[m, k]|`` over z, for each coordinate k.

    Where a whole interval minimizes (some values have exactly half of the weight, to rounding),
    its lower end is returned. So the result is always one of the values, and depends neither on
    the order of the rows nor on the weights' scale; a row of weight c counts as c rows.

    Args:
        values: Shape (M, d), one row a task. Where the weight is 0, a value may be anything.
        weights: Shape (M,) or (M, d), finite, at least 0, and not all 0 in any coordinate.

    Returns:
        Shape (d,).

    Raises:
        ValueError: The shapes disagree, or the weights are not such.
    """
    require(values.ndim == 2, "values.shape", values.shape, "(M, d)")
    weights = np.asarray(weights, dtype=np.float64)
    shapes = (values.shape[:1], values.shape)
    require(weights.shape in shapes, "weights.shape", weights.shape, f"{shapes[0]} or {shapes[1]}")
    require(bool(np.isfinite(weights).all() and (weights >= 0).all()), "weights", weights, ">= 0")
    # Coordinates become rows, which lie together in memory: sorting them is twice as fast.
    columns = np.ascontiguousarray(values.T)
    own = np.ascontiguousarray(np.broadcast_to(weights.T, columns.shape))
    order = np.argsort(np.where(own > 0, columns, np.inf), axis=1, kind="stable")
    mass = np.cumsum(np.take_along_axis(own, order, axis=1), axis=1)
    total = mass[:, -1:]
    none = np.flatnonzero(total[:, 0] == 0)
    require(not len(none), "weights", f"0 for all of coordinate {none[:1]}", "positive for a row")
    # The first row at which half of the weight is reached. Sums of weights are rounded, and the
    # slack keeps a tie a tie when all weights are scaled, or come in another order.
    slack = 4 * len(values) * np.finfo(np.float64).eps
    place = (mass < total * (0.5 - slack)).sum(axis=1, keepdims=True)
    rows = np.take_along_axis(order, place, axis=1)
    return np.take_along_axis(columns, rows, axis=1)[:, 0]
