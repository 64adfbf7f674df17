"""Robust centers of a round's models, which a minority of arbitrary models cannot move far.

Blanchard et al. Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent. NeurIPS
2017. Yin et al. Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. ICML
2018. Every model counts once, whatever weight is claimed for it. Models are given in the order
of their clients, so that every engine breaks ties in the same way.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from engram.types import Params

Center = Callable[[Sequence[Params]], Params]


def trimmed_mean(models: Sequence[Params], cut: int) -> Params:
    """Returns the trimmed mean of each coordinate.

    With m <= cut arbitrary models among them, each coordinate of the result lies within the
    range of the others' values (Yin et al., Def. 2, with cut = beta * n).

    Args:
        models: n >= 1 models.
        cut: Number of values to leave out at either end; >= 0, where 0 gives the plain mean. If
            nothing would be left, only the middle value (n odd) or two (n even) remain, which is
            the median.
    """
    n = len(models)
    cut = min(cut, (n - 1) // 2)
    center = {}
    for name, first in models[0].items():
        values = np.stack([model[name].numpy(force=True) for model in models])
        values.sort(axis=0)  # along this axis ten times faster than torch
        middle = np.asarray(values[cut : n - cut].mean(axis=0))
        center[name] = torch.from_numpy(middle).to(first)
    return center


def median(models: Sequence[Params]) -> Params:
    """Returns the median of each coordinate: of an even number, the mean of the middle two.

    With a minority of arbitrary models, each coordinate lies within the range of the others'.
    """
    return trimmed_mean(models, len(models))


def krum(models: Sequence[Params], malicious: int) -> Params:
    """Returns the model that is nearest to its n - malicious - 2 nearest others.

    That is the model i with the smallest sum of ``|x_i - x_j|^2`` over them; of several, the
    first (Blanchard et al., Sec. 4). It withstands ``malicious`` arbitrary models if
    2 * malicious + 2 < n. With fewer models it still returns one of them, and considers at least
    one neighbor.

    Args:
        models: n >= 1 models.
        malicious: Number of models that may be arbitrary; >= 0.
    """
    n = len(models)
    flat = torch.stack([torch.cat([x.flatten() for x in model.values()]) for model in models])
    flat = flat.double()  # squares of float32 overflow, and its products cancel
    squares = torch.cdist(flat, flat).square().fill_diagonal_(torch.inf)
    nearest = squares.sort(dim=1).values[:, : min(max(1, n - malicious - 2), n - 1)]
    scores = nearest.sum(dim=1).tolist()
    return models[min(range(n), key=scores.__getitem__)]
