"""Rules that hold a model near the common one of the round's start.

FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous
Networks. MLSys 2020. Ditto: Li, Hu, Beirami, Smith. Ditto: Fair and Robust Federated Learning
Through Personalization. ICML 2021. MR-MTL: Liu, Hu, Wu, Smith. On Privacy and Personalization in
Cross-Silo Federated Learning. NeurIPS 2022.
"""

from collections.abc import Callable

from engram.checks import require
from engram.derivatives import gradient
from engram.federated.local_only import OWN, own_model
from engram.optimizers import descent
from engram.tree import add_scaled, marked, part
from engram.types import Batch, LocalRule, LossFn, Params, Scale

__all__ = ["ditto", "fedprox", "mr_mtl"]

_START = "start/"  # before the names, in the state, of the common model w_t that was received

Pulled = Callable[[Params, Params, Batch], Params]  # (params, state, batch) -> direction


def fedprox(loss: LossFn, *, eta: Scale, strength: Scale) -> LocalRule:
    """Builds FedProx's local steps (Alg. 2), on the objective (2) of that paper.

        w <- w - eta (grad L(w) + mu (w - w_t))

    These are the steps of an inexact solver; how inexact it is follows from their number.

    Args:
        loss: Mean loss over one batch.
        eta: Step size; > 0.
        strength: Weight mu of the proximal term; >= 0, where 0 is FedAvg.

    Raises:
        ValueError: If a value is out of range.
    """
    pulled = _pulled(loss, eta, "mu", strength)

    def direction(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
        (batch,) = batches
        return pulled(w, u, batch), u

    return _from_the_start(direction, eta)._replace(single_use=True)


def ditto(loss: LossFn, *, eta: Scale, strength: Scale) -> LocalRule:
    """Builds Ditto (Alg. 1 of that paper) with FedAvg as the solver of the common model.

        w <- w - eta grad L(w)
        v <- v - eta (grad L(v) + lambda (v - w_t))

    Both steps are taken on the same batch. v is the client's own model, which it is served by.

    Args:
        loss: Mean loss over one batch.
        eta: Step size of both; > 0.
        strength: lambda; >= 0, where 0 is the local model alone.

    Raises:
        ValueError: If a value is out of range.
    """
    grad, pulled = gradient(loss), _pulled(loss, eta, "lambda", strength)

    def direction(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
        (batch,) = batches
        own = pulled(own_model(w), u, batch)
        return grad(part(w), batch) | marked(own, OWN.mark), u

    return _from_the_start(direction, eta)._replace(companions=(OWN,), served=own_model)


def mr_mtl(loss: LossFn, *, eta: Scale, strength: Scale) -> LocalRule:
    """Builds mean-regularized multi-task learning, without the privacy that its paper adds.

    Client k lowers ``L_k(v) + lambda/2 |v - w_t|^2``, w_t being the mean of the clients' models::

        v <- v - eta (grad L(v) + lambda (v - w_t))

    A client sends v itself, so that w_t+1 is the mean of the clients' own models.

    Args:
        loss: Mean loss over one batch.
        eta: Step size; > 0.
        strength: lambda; >= 0, where 0 is the local model alone.

    Raises:
        ValueError: If a value is out of range.
    """
    pulled = _pulled(loss, eta, "lambda", strength)

    def direction(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
        (batch,) = batches
        return marked(pulled(own_model(w), u, batch), OWN.mark), u

    return _from_the_start(direction, eta)._replace(
        companions=(OWN,),
        moved=lambda w: marked(own_model(w), OWN.mark),
        finish=lambda w, u: w | own_model(w),
        served=own_model,
    )


def _pulled(loss: LossFn, eta: Scale, name: str, strength: Scale) -> Pulled:
    """Returns the gradient of ``L(params) + strength/2 |params - w_t|^2``."""
    require(eta > 0, "eta", eta, "positive")
    require(strength >= 0, name, strength, "at least 0")
    grad = gradient(loss)

    def pulled(params: Params, u: Params, batch: Batch) -> Params:
        away = add_scaled(params, -1.0, part(u, _START))
        return add_scaled(grad(params, batch), strength, away)

    return pulled


def _from_the_start(
    direction: Callable[[Params, Params, tuple[Batch, ...]], tuple[Params, Params]], eta: Scale
) -> LocalRule:
    """Returns a rule whose state is w_t, in every round anew."""

    def init(w: Params, batch: Batch | None) -> Params:
        del batch
        return marked(part(w), _START)

    return LocalRule(
        init=init,
        step=descent(direction, eta),
        affine=True,
        direction=direction,
        eta=eta,
    )
