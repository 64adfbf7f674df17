"""FedAvg's local rule: stochastic gradient descent. The reference for everything else.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas. Communication-Efficient Learning of Deep
Networks from Decentralized Data. AISTATS 2017.
"""

from engram.checks import require
from engram.derivatives import gradient
from engram.optimizers import descent
from engram.types import Batch, LocalRule, LossFn, Params, Scale

__all__ = ["fedavg"]


def fedavg(loss: LossFn, *, eta: Scale) -> LocalRule:
    """Builds ``w <- w - eta grad L(w)``, one batch a step, without state.

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
        return grad(w, batch), u

    return LocalRule(
        init=init,
        step=descent(direction, eta),
        reads_state=False,
        affine=True,
        single_use=True,
        direction=direction,
        eta=eta,
    )
