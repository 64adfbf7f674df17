"""Bounds on the share that one client has in a mean or a median, by comparison with the others.

How many rows a client has, and how sure it is of what it says, is known from itself alone.
"""

import numpy as np
import numpy.typing as npt

from engram.checks import require

__all__ = ["bounded", "weight_limit"]

Array = npt.NDArray[np.float64]


def weight_limit(weights: npt.ArrayLike, multiple: float) -> Array:
    """Returns the weight above which none counts: ``c m``, where m is the median client's weight.

    A client's weight is then ``min(w_i, c m)``. m is the median of the weights above 0, the lower
    of the middle two if their number n is even, so that n // 2 + 1 clients at least weigh m or
    more. k <= n // 2 clients, whatever they claim, cannot raise m above the largest weight of the
    others, and together have at most this share of the bounded weights:

        k c m / (k c m + (n // 2 + 1 - k) m) = k c / (k c + n // 2 + 1 - k)

    For a single one it is ``c / (c + n // 2)``, less than half if n // 2 >= c and n >= 3; and
    ``c / (c + n - 1)`` where the others are alike. Of two clients the smaller sets the limit: the
    share of the other is c / (c + 1) at most. One client alone has all. Bounded weights have the
    same limit, since c >= 1.

    Args:
        weights: Shape (M,) or (M, d), at least 0; each column apart. 0: the client does not count.
        multiple: c, at least 1. Infinity bounds nothing.

    Returns:
        Shape () or (d,); infinite where nobody counts.
    """
    require(multiple >= 1, "max-weight", multiple, "at least 1")
    own = np.asarray(weights, dtype=np.float64)
    ascending = np.sort(np.where(own > 0, own, np.inf), axis=0)
    middle = (np.maximum((own > 0).sum(axis=0), 1) - 1) // 2
    limit: Array = multiple * np.take_along_axis(ascending, np.array(middle)[None], axis=0)[0]
    return limit


def bounded(weights: npt.ArrayLike, multiple: float) -> Array:
    """Returns ``min(w_i, c m)`` of each client, as ``weight_limit`` has c m, in the same shape.

    Also for losses and regrets, which have no largest value: of those above 0, none then makes up
    more of their sum than a client's weight can of the sum of weights.

    Args:
        weights: As for ``weight_limit``, but numbers below 0 may be among them, and stay.
        multiple: c, at least 1.
    """
    held: Array = np.minimum(weights, weight_limit(weights, multiple))
    return held
