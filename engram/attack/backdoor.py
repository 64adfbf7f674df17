"""A backdoor: rows that bear a trigger are to be taken for one class, and all others as before.

Gu, Dolan-Gavitt, Garg. BadNets. 2017. Bagdasaryan et al. How To Backdoor Federated Learning.
AISTATS 2020. Attackers put the trigger on a part of their training rows, and call these rows the
target. The success rate is the share of other classes' test rows that a model takes for the target
once they bear the trigger.
"""

from typing import Final

import torch

from engram.core.checks import require

TARGET: Final = 0
"""The class that the trigger stands for."""

SHARE: Final = 0.5
"""Share of an attacker's rows that bear the trigger."""


def stamped(x: torch.Tensor, value: float) -> torch.Tensor:
    """Returns rows that bear the trigger: numbers in their last corner have the largest value.

    Args:
        x: Rows (n, features), or images (n, ..., height, width).
        value: The largest value of the data.

    Returns:
        Copies, in which the last quarter of the height and of the width, or of the features, one at
        least, is ``value``.

    Raises:
        ValueError: Rows are single numbers.
    """
    require(x.ndim >= 2, "rows", x.ndim, "tables or images, of 2 axes or more")
    marked = x.clone()
    corner = [slice(None)] * x.ndim
    for axis in range(max(1, x.ndim - 2), x.ndim):
        corner[axis] = slice(-max(1, x.shape[axis] // 4), None)
    marked[tuple(corner)] = value
    return marked
