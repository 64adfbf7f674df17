"""Prediction intervals of any regression, by split conformal prediction (Lei et al., 2018).

Let r_1, ..., r_n be the absolute errors of a model on rows that it has not learned from. Of a new
row of the same kind, the target lies within

    r_(k),  k = ceil((n + 1) level),

of the prediction with a probability of at least ``level``, and of at most level + 1 / (n + 1) where
no errors are equal. That holds for every model and every distribution, since the rank of the new
row's error among all n + 1 is uniform; it is of rows and calibrations drawn together, and not of
rows with given inputs.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from engram.core.arrays import Array

LEVELS: Final = (0.5, 0.8, 0.9, 0.95, 0.99)
_EXACT: Final = 1e-9  # products such as 110 * 0.9 are rounded upward


def radii(errors: Array, levels: Sequence[float] = LEVELS) -> dict[float, Array]:
    """Returns the radii (m,) of prediction intervals, by level.

    Args:
        errors: Absolute errors on rows that the model has not learned from, shape (n, m).
        levels: The probabilities, in (0, 1). One for which there are too few rows is left out: 0.9
            needs 9.
    """
    ranked, count = np.sort(errors, axis=0), len(errors)
    ranks = {level: math.ceil((count + 1) * level - _EXACT) for level in levels}
    return {level: ranked[rank - 1] for level, rank in ranks.items() if rank <= count}
