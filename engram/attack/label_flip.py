"""Labels flipped: attackers train honestly, on rows whose classes are exchanged.

Tolpegin et al. Data Poisoning Attacks Against Federated Learning Systems. ESORICS 2020.
"""

import torch

from engram.core.checks import require


def flipped(y: torch.Tensor, classes: int) -> torch.Tensor:
    """Returns class ``classes - 1 - y`` in place of class y, for each row.

    Raises:
        ValueError: There are fewer than two classes.
    """
    require(classes >= 2, "classes", classes, "2 or more")
    return classes - 1 - y
