"""The mean loss of a batch, as a function of parameters: what local rules lower."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, vjp
from torch.nn import functional

from engram.checks import must
from engram.dense import CROSS_ENTROPY, Output, dense_loss, indicators
from engram.derivatives import LossWithDerivatives
from engram.models.base import Model, Outputs
from engram.tasks import CLASSIFICATION, REGRESSION, RowLoss, Task
from engram.types import Batch, LossFn, Params, Weighted

__all__ = [
    "cohort_losses",
    "cross_entropy",
    "dense_loss_of",
    "mean_loss",
    "penalized_loss",
    "represented",
    "squared_error",
]


def mean_loss(model: Model, task: Task) -> LossFn:
    """Builds the mean over a batch's rows of the task's loss, in training.

    A batch is ``(inputs, targets)``, and ``(inputs, targets, key)`` for a network that is noisy; or
    such a batch ``Weighted``.
    """
    mean = _mean(task.loss)

    def loss(params: Params, batch: Batch) -> Tensor:
        batch, weights = batch if isinstance(batch, Weighted) else (batch, None)
        inputs, targets, *key = batch
        if model.train is None:
            outputs = model.apply(params, inputs)
        else:
            outputs = model.train(params, inputs, *(key or [None]))
        return mean(outputs, targets) if weights is None else task.loss(outputs, targets) @ weights

    return loss


def penalized_loss(
    model: Model, task: Task, penalty: Callable[[Params, Tensor, Tensor], Tensor]
) -> LossFn:
    """Builds ``mean_loss`` plus a penalty of the batch's representations.

    Args:
        model: The network.
        task: What is learned.
        penalty: ``(params, representations (k, width), targets (k, ...)) -> penalty``, of shape ().

    Raises:
        ValueError: If the network has no representation.
    """
    mean, represent = _mean(task.loss), represented(model)

    def loss(params: Params, batch: Batch) -> Tensor:
        inputs, targets, *key = batch
        outputs, z = represent(params, inputs, *(key or [None]), None, True)
        return mean(outputs, targets) + penalty(params, z, targets)

    return loss


def represented(model: Model) -> Callable[..., tuple[Outputs, Tensor]]:
    """Returns ``model.represent``.

    Raises:
        ValueError: If the network has no representation.
    """
    if model.represent is None:
        expected = "one whose last layer with parameters takes one vector for each row"
        raise ValueError(must("model", "another", expected))
    return model.represent


def cohort_losses(model: Model, task: Task) -> LossFn | None:
    """Builds the mean losses (c,) of c networks on a batch each; None if ``together`` is."""
    together = model.together
    if together is None:
        return None

    def losses(params: Params, batch: Batch) -> Tensor:
        batch, weights = batch if isinstance(batch, Weighted) else (batch, None)
        inputs, targets = batch
        rows = _rows(task.loss, together(params, inputs), targets)
        return rows.mean(1) if weights is None else torch.einsum("ck,ck...->c...", rows, weights)

    return losses


def _rows(loss: RowLoss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns the losses (c, k) of outputs (c, k, ...) and targets (c, k, ...)."""
    return loss(outputs.flatten(0, 1), targets.flatten(0, 1)).view(outputs.shape[:2])


def _mean(loss: RowLoss) -> Callable[[Tensor, Tensor], Tensor]:
    if loss is CLASSIFICATION.loss:
        return functional.cross_entropy  # one operation for all rows
    return lambda outputs, targets: loss(outputs, targets).mean()


def cross_entropy(model: Model) -> LossFn:
    """Builds the mean negative log-likelihood of a batch of classes, in nats."""
    return mean_loss(model, CLASSIFICATION)


def squared_error(model: Model) -> LossFn:
    """Builds the mean squared error of a batch, over its rows (k) and outputs (k, out)."""
    return mean_loss(model, REGRESSION)


def dense_loss_of(
    task: Task, layers: int, outputs: int
) -> tuple[LossWithDerivatives, Callable[[Tensor], Tensor]]:
    """Builds the same for stacked dense networks, with its derivatives written out.

    Args:
        task: What is learned.
        layers: Number of dense layers.
        outputs: Number of outputs.

    Returns:
        The loss, and what makes its batches' targets (c, k, ...) of the data's.
    """
    if task.loss is CLASSIFICATION.loss:
        return dense_loss(layers, CROSS_ENTROPY), lambda targets: indicators(targets, outputs)
    return dense_loss(layers, _by_autograd(task.loss)), lambda targets: targets


def _by_autograd(rows: RowLoss) -> Output:
    """Returns a loss of outputs z (c, k, out), whose derivatives by z are autograd's.

    Each row's loss depends on this row's outputs alone, so one pass is right for all of them.
    """

    def total(z: Tensor, targets: Tensor) -> Tensor:
        return rows(z.flatten(0, 1), targets.flatten(0, 1)).sum() / z.shape[1]

    def value(z: Tensor, targets: Tensor) -> Tensor:
        return _rows(rows, z, targets).mean(1)

    def gradient(z: Tensor, targets: Tensor) -> Tensor:
        found: Tensor = grad(total)(z, targets)
        return found

    def tangent(z: Tensor, targets: Tensor, dz: Tensor) -> tuple[Tensor, Tensor]:
        at, product, *_ = vjp(lambda z: gradient(z, targets), z)
        (change,) = product(dz)  # a Hessian is symmetric
        return at, change

    return Output(value, gradient, tangent)
