"""Bounds on the share that one client has in a mean or a median, by comparison with the others.

A client's number of rows and its precision are known only from what it claims itself.
"""

import numpy as np
import numpy.typing as npt

from engram.core.arrays import Array
from engram.core.checks import require


def weight_limit(weights: npt.ArrayLike, multiple: float) -> Array:
    """Returns the upper limit of weights: ``c m``, where m is the median client's weight.

    A client's weight is then ``min(w_i, c m)``. m is the median of the positive weights, the lower
    of the middle two if their number n is even, so that at least n // 2 + 1 clients have weight m
    or more. Whatever k <= n // 2 clients claim, they cannot raise m above the largest weight of the
    others, and together have at most this share of the bounded weights:

        k c m / (k c m + (n // 2 + 1 - k) m) = k c / (k c + n // 2 + 1 - k)

    For a single one it is ``c / (c + n // 2)``, less than half if n // 2 >= c and n >= 3; and
    ``c / (c + n - 1)`` if all others have equal weights. Of two clients the smaller sets the limit:
    the other's share is at most c / (c + 1). A single client has the whole weight. Bounding weights
    does not change their limit, since c >= 1.

    Args:
        weights: Shape (M,) or (M, d), at least 0; columns are separate. Clients of 0 do not count.
        multiple: c, at least 1. Infinity sets no limit.

    Returns:
        Shape () or (d,); infinite where no client counts.
    """
    require(multiple >= 1, "max-weight", multiple, "at least 1")
    own = np.asarray(weights, dtype=np.float64)
    ascending = np.sort(np.where(own > 0, own, np.inf), axis=0)
    middle = (np.maximum((own > 0).sum(axis=0), 1) - 1) // 2
    limit: Array = multiple * np.take_along_axis(ascending, np.array(middle)[None], axis=0)[0]
    return limit


def bounded(weights: npt.ArrayLike, multiple: float) -> Array:
    """Returns ``min(w_i, c m)`` for each client, with c m of ``weight_limit``, in the same shape.

    Also for losses and regrets, which have no upper bound: the share of a positive one in their sum
    is then bounded as a weight's is.
    Negative ones are left unchanged.
    """
    return np.minimum(weights, weight_limit(weights, multiple))
