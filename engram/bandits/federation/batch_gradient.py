"""The gradient of a batch of rows, summed from the parts that sites compute."""

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np
import torch

from engram.bandits.networks import Weights
from engram.bandits.replay import Drawn

_LEAST: Final = 1e-6  # share of the rows by which a gradient may be divided


def summed(
    weights: Weights, drawn: Drawn, heard: Collection[int], parts: Sequence[Weights]
) -> Weights:
    """Sums sites' gradients, rescaled to a mean over the rows of the clients that answered.

    Args:
        weights: Weights of M networks, shapes (M, out, in), which are the gradient's shapes.
        drawn: All rows that the sites were asked about; its users are clients.
        heard: The clients whose sites answered.
        parts: The gradient of each site that answered.
    """
    lost = np.where(np.isin(drawn.users, list(heard)), 0.0, drawn.shares).sum(axis=1)
    scale = torch.from_numpy(1 / np.where(lost < 1 - _LEAST, 1 - lost, 1.0))[:, None, None]
    zeros = tuple(map(torch.zeros_like, weights))
    return tuple(
        scale * torch.stack(layers).sum(dim=0) for layers in zip(zeros, *parts, strict=True)
    )
