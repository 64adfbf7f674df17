"""APFL: a mixture of a client's own model and the common one.

Deng, Kamani, Mahdavi. Adaptive Personalized Federated Learning. 2020 (arXiv:2003.13461).
"""

from engram.checks import require
from engram.derivatives import gradient
from engram.federated.local_only import OWN, own_model
from engram.optimizers import descent
from engram.tree import interpolate, marked, multiplied, part
from engram.types import Batch, LocalRule, LossFn, Params, Scale

__all__ = ["apfl"]


def apfl(loss: LossFn, *, eta: Scale, alpha: Scale) -> LocalRule:
    """Builds APFL's local steps (Alg. 1 of that paper), with a fixed weight of the mixture.

        w <- w - eta grad L(w)
        v <- v - eta alpha grad L(alpha v + (1 - alpha) w)

    Both gradients are taken at the models before the step, on the same batch. alpha stands before
    the second since it is the gradient by v. A client is served by the mixture.

    Args:
        loss: Mean loss over one batch.
        eta: Step size of both; > 0.
        alpha: Weight of the client's own model v; in [0, 1]. With 0 this is FedAvg, and with 1 the
            local model alone.

    Raises:
        ValueError: If a value is out of range.
    """
    require(eta > 0, "eta", eta, "positive")
    require((alpha >= 0) & (alpha <= 1), "alpha", alpha, "in [0, 1]")
    grad = gradient(loss)

    def init(w: Params, batch: Batch | None) -> Params:
        del w, batch
        return {}

    def mixture(w: Params) -> Params:
        return interpolate(part(w), own_model(w), alpha)

    def direction(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
        (batch,) = batches
        own = multiplied(grad(mixture(w), batch), alpha)
        return grad(part(w), batch) | marked(own, OWN.mark), u

    return LocalRule(
        init=init,
        step=descent(direction, eta),
        batches_per_step=1,
        needs_initial_batch=False,
        state_is_model=False,
        reads_state=False,
        affine=True,
        direction=direction,
        eta=eta,
        companions=(OWN,),
        served=mixture,
    )
