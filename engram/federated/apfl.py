"""APFL: a mixture of a client's own model and the common one.

Deng, Kamani, Mahdavi. Adaptive Personalized Federated Learning. 2020 (arXiv:2003.13461).
"""

from typing import Final

import torch
from torch import Tensor

from engram.checks import require
from engram.derivatives import gradient
from engram.federated.local_only import OWN, own_model
from engram.optimizers import descent
from engram.tree import add_scaled, interpolate, marked, multiplied, part
from engram.types import Batch, Companion, LocalRule, LossFn, Params, Scale

__all__ = ["apfl"]

_ALPHA: Final = "alpha"  # in the state; and, under the mark, by how much it exceeds its start
_AWAY: Final = Companion("own-alpha/", personal=True, copied=False, numbers=(_ALPHA,))


def apfl(loss: LossFn, *, eta: Scale, alpha: Scale, adaptive: bool = False) -> LocalRule:
    """Builds APFL's local steps (Alg. 1 of that paper).

        m = alpha v + (1 - alpha) w
        w <- w - eta grad L(w)
        v <- v - eta alpha grad L(m)
        alpha <- clip(alpha - eta <grad L(m), v - w>, 0, 1)           if adaptive

    All gradients are taken at the models before the step, on the same batch. alpha stands before
    the second since it is the gradient by v. A client is served by the mixture. Neither an
    optimizer nor a schedule bears on alpha.

    Args:
        loss: Mean loss over one batch.
        eta: Step size; > 0.
        alpha: Weight of the client's own model v; in [0, 1]. With 0 this is FedAvg, and with 1 the
            local model alone, if it is fixed.
        adaptive: Whether each client learns a weight of its own, from there, and keeps it.

    Raises:
        ValueError: If a value is out of range.
    """
    require(eta > 0, "eta", eta, "positive")
    require((alpha >= 0) & (alpha <= 1), "alpha", alpha, "in [0, 1]")
    grad = gradient(loss)

    def kept(w: Params) -> Tensor:
        return w[_AWAY.mark + _ALPHA] + alpha

    def init(w: Params, batch: Batch | None) -> Params:
        del batch
        return {_ALPHA: kept(w)} if adaptive else {}

    def mixture(w: Params, a: Scale) -> Params:
        return interpolate(part(w), own_model(w), a)

    def direction(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
        (batch,) = batches
        a = u[_ALPHA] if adaptive else alpha
        g = grad(mixture(w, a), batch)
        if adaptive:
            u = u | {_ALPHA: (u[_ALPHA] - eta * by_weight(w, g)).clamp(0, 1)}
        return grad(part(w), batch) | marked(multiplied(g, a), OWN.mark), u

    def by_weight(w: Params, g: Params) -> Tensor:
        away = add_scaled(own_model(w), -1.0, part(w))
        # In float64, in which it does not depend on the order of a sum, which torch leaves open.
        products = torch.cat([(leaf * away[name]).flatten() for name, leaf in g.items()])
        return products.sum(dtype=torch.float64).to(products)

    def finish(w: Params, u: Params) -> Params:
        return w | {_AWAY.mark + _ALPHA: u[_ALPHA] - alpha}

    return LocalRule(
        init=init,
        step=descent(direction, eta),
        reads_state=False,
        affine=not adaptive,  # an inner product is not
        direction=direction,
        eta=eta,
        companions=(OWN, _AWAY) if adaptive else (OWN,),
        moved=lambda w: part(w) | marked(own_model(w), OWN.mark),
        finish=finish if adaptive else None,
        served=lambda w: mixture(w, kept(w) if adaptive else alpha),
    )
