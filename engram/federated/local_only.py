"""Each client's model by itself: what any federation has to beat."""

from typing import Final

from engram.checks import require
from engram.derivatives import gradient
from engram.optimizers import descent
from engram.tree import marked, part
from engram.types import Batch, Companion, LocalRule, LossFn, Params, Scale

__all__ = ["OWN", "local_only", "own_model"]

OWN: Final = Companion("own/", personal=True, copied=True)
"""A client's own model v, which starts where the common one does and never leaves the client."""


def own_model(w: Params) -> Params:
    """Returns v."""
    return part(w, OWN.mark)


def local_only(loss: LossFn, *, eta: Scale) -> LocalRule:
    """Builds ``v <- v - eta grad L(v)``, stochastic gradient descent on a client's own model.

    The common model stays as it is, and so it is the initial one in every round.

    Args:
        loss: Mean loss over one batch.
        eta: Step size; > 0.

    Raises:
        ValueError: If ``eta`` is not positive.
    """
    require(eta > 0, "eta", eta, "positive")
    grad = gradient(loss)

    def init(w: Params, batch: Batch | None) -> Params:
        del w, batch
        return {}

    def direction(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
        (batch,) = batches
        return marked(grad(own_model(w), batch), OWN.mark), u

    return LocalRule(
        init=init,
        step=descent(direction, eta),
        reads_state=False,
        affine=True,
        direction=direction,
        eta=eta,
        companions=(OWN,),
        moved=lambda w: marked(own_model(w), OWN.mark),
        served=own_model,
    )
