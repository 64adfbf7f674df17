"""FedALA: local steps from an elementwise mixture of the common model and a client's last one.

Zhang, Hua, Wang, Song, Xue, Ma, Guan. FedALA: Adaptive Local Aggregation for Personalized
Federated Learning. AAAI 2023. Below, Alg. 1 is that paper's.
"""

from typing import Final

import torch

from engram.checks import require
from engram.derivatives import gradient
from engram.federated.local_only import OWN, own_model
from engram.federated.parts import first_steps
from engram.optimizers import descent
from engram.tree import add_scaled, marked, multiplied, part
from engram.types import Batch, Companion, LocalRule, LossFn, Params, Scale

__all__ = ["WEIGHT", "fedala"]

WEIGHT: Final = Companion("own-weight/", personal=True, copied=False)
"""The weight a, in [0, 1], of each number of a client's own model; that of the common one is
1 - a, the paper's W, which starts at 1."""

_START: Final = (
    "start/"  # before the names, in the state, of the common model w_t that was received
)


def fedala(loss: LossFn, *, eta: Scale, weight_eta: Scale, share: float) -> LocalRule:
    """Builds a client's round (Alg. 1): from w_t, its last model v and the kept weights a.

        m = (1 - a) * w_t + a * v                                     elementwise
        a <- clip(a - eta_a grad L(m) * (v - w_t), 0, 1)              the first steps
        w <- w - eta grad L(w)                                        the others, from w = m

    Where all weights are 0, as they start, m is w_t and this is FedAvg. A client keeps the last w
    as its v. It is served by m of the newest w_t and what it keeps, which Alg. 1 returns: where it
    would train from next.

    The paper trains the weights until they converge when they are used for the first time, and once
    through a part of the rows in later rounds. Here it is the same share of the steps in each
    round, since nothing in a rule depends on values.

    Args:
        loss: Mean loss over one batch.
        eta: Step size of the model; > 0.
        weight_eta: Step size of the weights; >= 0.
        share: Which share of a round's steps trains the weights, rounded up; in [0, 1). Of a single
            step it trains none.

    Raises:
        ValueError: If a value is out of range.
    """
    require(eta > 0, "eta", eta, "positive")
    require(weight_eta >= 0, "weight-eta", weight_eta, "at least 0")
    turn = first_steps(share)
    grad = gradient(loss)

    def init(w: Params, batch: Batch | None) -> Params:
        del batch
        return marked(part(w), _START)

    def adapt(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
        (batch,) = batches
        weights = part(w, WEIGHT.mark)
        start, own = part(u, _START), own_model(w)
        g = grad(_mixed(start, own, weights), batch)
        away = add_scaled(own, -1.0, start)
        by_weight = multiplied({n: leaf * away[n] for n, leaf in g.items()}, weight_eta)
        weights = {n: (leaf - by_weight[n]).clamp(0, 1) for n, leaf in weights.items()}
        return w | _mixed(start, own, weights) | marked(weights, WEIGHT.mark), u

    def direction(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
        (batch,) = batches
        return grad(part(w), batch), u

    training = LocalRule(
        init=init,
        step=descent(direction, eta),
        direction=direction,
        eta=eta,
        companions=(OWN, WEIGHT),
        moved=part,
        finish=lambda w, u: w | marked(part(w), OWN.mark),
        served=lambda w: _mixed(part(w), own_model(w), part(w, WEIGHT.mark)),
    )
    return training._replace(step=adapt, direction=None, prepares=True, then=(turn, training))


def _mixed(common: Params, own: Params, weights: Params) -> Params:
    """Returns ``(1 - a) * w_t + a * v``."""
    return {name: torch.lerp(x, own[name], weights[name]) for name, x in common.items()}
