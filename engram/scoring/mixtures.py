"""Mixtures of several models' predictions, and their loss."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.utils._pytree import tree_leaves

from engram.core.method import Served
from engram.core.types import Batch, LossFn, Params, Weighted
from engram.scoring.metrics import Targets


def mixture(targets: Targets, outputs: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Returns outputs of a mixture, (c, q, ...), of the kind that each model's are.

    That is the logarithm of ``sum_m pi_m p_m`` for the distributions over classes or tokens, the
    log-odds for labels, and the mean ``sum_m pi_m x_m`` for values.

    Args:
        targets: What the targets are, as ``Task.targets``.
        outputs: Of each of m models, (c, q, ...), for c clients.
        weights: The clients' weights pi, (c, m), >= 0, which add up to 1.
    """
    each = torch.stack(list(outputs), 1)
    pi = weights.reshape(*weights.shape, *[1] * (each.ndim - 2))
    if targets == "values":
        return (pi * each).sum(1)
    if targets == "labels":
        odds = ((logsigmoid(sign * each) + pi.log()).logsumexp(1) for sign in (1, -1))
        return next(odds) - next(odds)
    axis = 3 if targets == "classes" else -1  # a row may have several classes, behind that axis
    return (each.log_softmax(axis) + pi.log()).logsumexp(1)


def row_losses(loss: LossFn, params: Params, batch: Batch) -> Tensor:
    """Returns a batch's losses row by row, (k,), in training."""
    rows, like = len(tree_leaves(batch)[0]), next(iter(params.values()))
    return loss(params, Weighted(batch, torch.eye(rows, dtype=like.dtype, device=like.device)))


def loss_of(served: Served, loss: LossFn, batch: Batch) -> Tensor:
    """Returns the mean loss of a client that is served by several models.

    Without weights it is the least of the models' losses; otherwise the mean over rows of
    ``-log sum_m pi_m exp(-loss_m)``, the mixture's negative log-likelihood.

    Args:
        served: The models.
        loss: Of one model, a negative log-likelihood where there are weights.
        batch: The rows.
    """
    if served.weights is None:
        return torch.stack([loss(model, batch) for model in served.models]).amin(0)
    rows = torch.stack([row_losses(loss, model, batch) for model in served.models])
    return -(served.weights.log()[:, None] - rows).logsumexp(0).mean()
