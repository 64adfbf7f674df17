"""FedDBE: representations that mean the same everywhere, and a bias for each client.

Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan. Eliminating Domain Bias for Federated Learning in
Representation Space. NeurIPS 2023. Below, Alg. 1 is of that paper. A representation is what a
network's last layer takes.
"""

from typing import Final

import torch
from torch import Generator, Tensor, nn

from engram.checks import require
from engram.federated.observed import SEEN, noted, observing, received, with_observed
from engram.models import Model, penalized_loss, represented
from engram.models.base import Inputs, Outputs
from engram.models.plain import shifted
from engram.tasks import Task
from engram.tree import interpolate, marked, part
from engram.types import LocalRule, LossFn, Params, Scale

__all__ = ["BIAS", "fed_dbe", "fed_dbe_loss", "with_bias"]

BIAS: Final = "representation-bias"
"""The name of a client's bias, (width,); no layer of a module can have a hyphen in its name."""

# The clients' mean representation (width,), and how far it is known (): both 0 before the first
# round has been merged; then 1. Where clipping lets only a share of both through, their quotient is
# the mean, and the penalty has the square of that share as its weight.
_MEAN, _KNOWN = "mean", "known"


def with_bias(model: Model) -> Model:
    """Returns a network whose last layer takes its representation plus a client's own bias.

    The bias starts at 0, where this is the network itself. Beside the parameters stands the global
    mean, as ``fed_dbe`` takes it.

    Raises:
        ValueError: If the network has no representation.
    """
    inner, beside = represented(model), with_observed(model, {_MEAN: (model.width,), _KNOWN: ()})

    def init(generator: Generator) -> Params:
        return {BIAS: torch.zeros(model.width)} | beside.init(generator)

    def represent(
        params: Params,
        inputs: Inputs,
        key: Tensor | None = None,
        shift: Tensor | None = None,
        training: bool = False,
    ) -> tuple[Outputs, Tensor]:
        bias = params[BIAS] if shift is None else params[BIAS] + shift
        return inner(params, inputs, key, bias, training)

    def train(params: Params, inputs: Inputs, key: Tensor | None) -> Outputs:
        return represent(params, inputs, key, training=True)[0]

    def apply(params: Params, inputs: Inputs) -> Outputs:
        return represent(params, inputs)[0]

    def module(params: Params) -> nn.Module:
        rest = {name: leaf for name, leaf in params.items() if name != BIAS}
        assert model.module is not None  # for mypy: a network has it
        return shifted(model.module(rest), params[BIAS]).eval()

    return beside._replace(
        init=init,
        apply=apply,
        train=train,
        represent=represent,
        module=module,
        parameters=model.parameters + model.width,
        personal=model.personal | {BIAS},
    )


def fed_dbe_loss(model: Model, task: Task, strength: Scale) -> LossFn:
    """Builds the local loss: the task's mean loss plus the regularizer of means, of weight kappa.

        kappa / 2 |mean of the batch's representations - global mean|^2 / width

    The representations are those before the bias. The paper's loss has no division by the width;
    the authors' code has it, and with it kappa means the same for all networks. The mean is the
    batch's own, their momentum mu being 1: a mean over former steps would be of former models.

    Args:
        model: As ``with_bias`` returns it.
        task: What is learned.
        strength: kappa; >= 0.

    Raises:
        ValueError: If ``strength`` is negative.
    """
    require(strength >= 0, "kappa", strength, "at least 0")

    def penalty(w: Params, z: Tensor, targets: Tensor) -> Tensor:
        del targets
        sent, mean = received(w), z.mean(0)
        far = (sent[_KNOWN] * mean - sent[_MEAN]).square().mean()
        seen = {_MEAN: mean, _KNOWN: torch.ones_like(sent[_KNOWN])}
        return strength / 2 * far + noted(w, seen)

    return penalized_loss(model, task, penalty)


def fed_dbe(loss: LossFn, *, eta: Scale) -> LocalRule:
    """Builds a client's local steps (Alg. 1), which move the network and the client's bias alike.

    The server takes the mean of the models, as in FedAvg. Alg. 1 has every client send its mean
    representation before the first round. Here the first cohort stands for all clients, since it is
    drawn at random: in the first round kappa counts nothing, and a client also sends the mean of
    what its steps have drawn, each batch represented by the model before its step (in the authors'
    code, too, the clients train meanwhile). What the server makes of these is the global mean,
    which every later client returns as it is.

    Args:
        loss: As ``fed_dbe_loss`` builds it.
        eta: Step size of network and bias; > 0.

    Raises:
        ValueError: If ``eta`` is not positive.
    """
    rule = observing(loss, eta=eta)
    observe = rule.finish

    def finish(w: Params, u: Params) -> Params:
        assert observe is not None  # for mypy: an observing rule has it
        sent, own = part(w, SEEN), part(observe(w, u), SEEN)
        if not sent:
            return w
        return w | marked(interpolate(own, sent, sent[_KNOWN]), SEEN)

    return rule._replace(finish=finish)
