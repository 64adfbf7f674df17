"""Rows that are reconstructed from a change of a model which they made.

Whoever sees what a client sends may know the network and where the client began, and so sees its
gradient, or a sum of gradients along its steps.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from engram.core.types import Params

_NEAR: Final = 0.1  # share of the rows' variance
_RATE: Final = 0.1  # of Adam


def rows_of_layer(weight: Tensor, bias: Tensor) -> Tensor:
    """Reconstructs rows from a change of a network's first dense layer, (m', d).

    Of outputs z = W x + b, summed over rows r and steps of gradient descent, the change of unit i
    is ::

        Delta W_i = -eta sum_r (dL / dz_ri) x_r,    Delta b_i = -eta sum_r dL / dz_ri

    so that ``Delta W_i / Delta b_i`` is x_r itself if row r alone moves the unit, and a weighted
    sum of rows otherwise (Boenisch et al. When the Curious Abandon Honesty. EuroS&P 2023).

    Args:
        weight: Change of the weight, (m, d).
        bias: Change of the bias, (m,). Units whose bias has not moved tell nothing.
    """
    moved = bias != 0
    rows = weight[moved] / bias[moved, None]
    return rows[rows.isfinite().all(1)]


def rows_of_gradient(
    gradient: Callable[[Tensor], Params], change: Params, starts: Tensor, *, steps: int = 300
) -> Tensor:
    """Reconstructs rows from a change of the model, by matching gradients: (n, ...).

    Minimizes, by Adam from each start, ::

        1 - <gradient(x), -change> / (|gradient(x)| |change|)

    over rows x (Geiping et al. Inverting Gradients. NeurIPS 2020, Eq. 4, without its prior for
    images), and returns the rows of the start that ends lowest. The targets of the rows are known
    to ``gradient``: a real attacker may have to guess them.

    Args:
        gradient: Differentiable function of rows (n, ...), whose inputs have a variance near 1.
        change: The change that was seen: minus a step size times a gradient, or a sum of such.
        starts: Rows to begin with, (starts, n, ...).
        steps: Steps of Adam.
    """
    target = torch.cat([leaf.flatten() for _, leaf in sorted(change.items())])
    best, least = starts[0], torch.inf
    for start in starts:
        x = start.clone().requires_grad_()
        adam = torch.optim.Adam([x], lr=_RATE)
        for _ in range(steps):
            (x.grad,) = torch.autograd.grad(_distance(gradient(x), target), x)
            adam.step()
        end = float(_distance(gradient(x), target).detach())
        if end < least:
            best, least = x.detach(), end
    return best


def _distance(gradient: Params, target: Tensor) -> Tensor:
    found = torch.cat([leaf.flatten() for _, leaf in sorted(gradient.items())])
    return 1 + torch.nn.functional.cosine_similarity(found, target, dim=0)


def recovered(rows: Tensor, guesses: Tensor, spread: float) -> Tensor:
    """Marks the rows that are recovered by a guess, (n,).

    A guess shows a row if their squared distance is at most a tenth of ``spread``.
    Guesses, (k, d), are in any order; ``spread`` is the rows' mean squared distance to their mean.
    """
    if not len(guesses):
        return torch.zeros(len(rows), dtype=torch.bool)
    return torch.cdist(rows, guesses).square().amin(1) <= _NEAR * spread
