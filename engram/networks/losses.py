"""The mean loss of a batch, as a function of parameters."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.func import grad, vjp, vmap

from engram.cohort.dense_gradients import CROSS_ENTROPY, Output, dense_loss, indicators, mean_over
from engram.core.checks import must
from engram.core.derivatives import LossWithDerivatives
from engram.core.standardization import Standard
from engram.core.types import Batch, LossFn, Params, Weighted
from engram.networks.base import Model
from engram.scoring.tasks import CLASSIFICATION, RowLoss, Task


def mean_loss(model: Model, task: Task) -> LossFn:
    """Builds the task's loss of a batch, in training.

    A batch is ``(inputs, targets)``, and ``(inputs, targets, key)`` for a network that is noisy; or
    such a batch ``Weighted``.
    """

    def loss(params: Params, batch: Batch) -> Tensor:
        (inputs, targets, *key), weights = _unweighted(batch)
        if model.train is None:
            outputs = model.apply(params, inputs)
        else:
            outputs = model.train(params, inputs, *(key or [None]))
        if weights is None:
            return task.loss(outputs, targets)
        return rows_of(task)(outputs, targets) @ weights

    return loss


def _unweighted(batch: Batch) -> tuple[Batch, Tensor | None]:
    return batch if isinstance(batch, Weighted) else (batch, None)


def cohort_losses(model: Model, task: Task) -> LossFn | None:
    """Builds the mean losses (c,) of c networks on a batch each; None if ``together`` is."""
    together = model.together
    if together is None:
        return None

    def losses(params: Params, batch: Batch) -> Tensor:
        (inputs, targets), weights = _unweighted(batch)
        outputs = together(params, inputs)
        if weights is None:
            return _losses(task, outputs, targets)
        rows = _rows(rows_of(task), outputs, targets)
        return torch.einsum("ck,ck...->c...", rows, weights)

    return losses


def _losses(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns the losses (c,) of batches: outputs (c, k, ...) and targets (c, k, ...)."""
    if task.rows is None:
        return vmap(task.loss)(outputs, targets)
    return _rows(task.rows, outputs, targets).mean(1)


def _rows(rows: RowLoss, outputs: Tensor, targets: Tensor) -> Tensor:
    return rows(outputs.flatten(0, 1), targets.flatten(0, 1)).view(outputs.shape[:2])


def rows_of(task: Task) -> RowLoss:
    """Returns the task's loss of each row.

    Raises:
        ValueError: If it is a user's, of whole batches.
    """
    if task.rows is None:
        expected = "the task's own, whose rows can be weighted, for this method"
        raise ValueError(must("loss", task.own, expected))
    return task.rows


def dense_loss_of(
    task: Task, layers: int, outputs: int, standard: Standard | None = None
) -> tuple[LossWithDerivatives, Callable[[Tensor], Tensor]]:
    """Builds the loss of stacked dense networks, with its derivatives written out.

    Args:
        task: What is learned.
        layers: Number of dense layers.
        outputs: Number of outputs.
        standard: That of targets, on which the loss is taken standardized; None: as they are.

    Returns:
        The loss, and what makes its batches' targets (c, k, ...) of the data's.
    """
    if task.loss is CLASSIFICATION.loss:
        return dense_loss(layers, CROSS_ENTROPY), partial(indicators, count=outputs)
    convert = standard.standardized if standard else lambda targets: targets
    return dense_loss(layers, _by_autograd(task)), convert


def _by_autograd(task: Task) -> Output:
    """Returns the task's loss of outputs z (c, k, out), with autograd's derivatives.

    Each batch's loss depends on this batch's outputs alone, so one pass is right for all of them.
    """

    def value(z: Tensor, targets: Tensor, shares: Tensor | None) -> Tensor:
        if shares is None:
            return _losses(task, z, targets)
        if task.rows is not None:
            return mean_over(_rows(task.rows, z, targets), shares)
        batches = zip(z, targets, (shares > 0).sum(1).tolist(), strict=True)
        return torch.stack([task.loss(mine[:n], theirs[:n]) for mine, theirs, n in batches])

    def gradient(z: Tensor, targets: Tensor, shares: Tensor | None) -> Tensor:
        found: Tensor = grad(lambda at: value(at, targets, shares).sum())(z)
        return found

    def tangent(
        z: Tensor, targets: Tensor, shares: Tensor | None, dz: Tensor
    ) -> tuple[Tensor, Tensor]:
        at, product, *_ = vjp(lambda at: gradient(at, targets, shares), z)
        (change,) = product(dz)  # a Hessian is symmetric
        return at, change

    return Output(value, gradient, tangent)
