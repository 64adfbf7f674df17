"""ProtoNet: classification by distances to the mean embedding of each class.

Snell, Swersky, Zemel. Prototypical Networks for Few-shot Learning. NeurIPS 2017.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from engram.cohort.stacked_models import expand, mean_of_tasks
from engram.core.checks import require
from engram.core.derivatives import LossWithDerivatives, gradient
from engram.core.tree import add_scaled
from engram.core.types import Batch, LossFn, Params, Scale
from engram.meta.single_node import Draw, Episode, MetaRule, OnlyModel, check_sampling

Embed = Callable[[Params, Tensor], Tensor]  # (params, inputs (k, ...)) -> points (k, e)


def prototypical_logits(embed: Embed) -> Callable[[Params, Batch, Tensor], Tensor]:
    """Builds ``(params, support, inputs) -> logits``: minus squared distances to the prototypes.

    The support consists of inputs (k, ...) and one-hot classes (k, c), with each class at least
    once. A class's prototype is the mean embedding of its examples. The logits are (q, c) for
    inputs (q, ...).
    """

    def logits(params: Params, support: Batch, inputs: Tensor) -> Tensor:
        x, y = support
        prototypes = y.T @ embed(params, x) / y.sum(0).unsqueeze(1)
        points = embed(params, inputs)
        distances: Tensor = (points.unsqueeze(1) - prototypes).square().sum(-1)
        return -distances

    return logits


def prototypical_loss(embed: Embed) -> LossFn:
    """Builds the mean cross-entropy, in nats, of a batch ``(support, query)``, each as above."""
    logits = prototypical_logits(embed)

    def loss(params: Params, batch: Batch) -> Tensor:
        support, (x, y) = batch
        log_p = torch.log_softmax(logits(params, support, x), -1)
        mean: Tensor = (log_p * y).sum(-1).mean()
        return -mean

    return loss


def protonet(
    loss: LossWithDerivatives, *, tasks_per_step: int, support: int, query: int, eta: Scale
) -> MetaRule[OnlyModel]:
    """Builds ProtoNet's training: ``w <- w - eta mean_i grad L_i(w)``, i over the tasks drawn.

    Snell et al. draw the query from the rows outside the support; here the two are independent, as
    all batches of an iteration are, so that a row may be in both.

    ``loss`` is a stacked ``prototypical_loss``, ``support`` >= 1 the rows for prototypes, which
    must contain all classes, and ``query`` >= 1 the rows that are classified.
    """
    require(eta > 0, "eta", eta, "positive")
    check_sampling(tasks_per_step, min(support, query))
    grad = gradient(loss)
    draw = Draw(tasks_per_step, (support, query))

    def step(state: OnlyModel, episodes: tuple[Episode, ...]) -> OnlyModel:
        ((drawn, batches),) = episodes
        delta = mean_of_tasks(grad(expand(state.w, drawn.shape[1]), batches))
        return OnlyModel(add_scaled(state.w, -eta, delta))

    return MetaRule(OnlyModel, step, ((draw,),), memories=0)
