"""FedDyn: a penalty that changes with the rounds, so that local minima agree with the common one.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama. Federated Learning Based on Dynamic
Regularization. ICLR 2021. Alg. 1 and the equations are of that paper.
"""

from collections.abc import Sequence
from typing import Final

import torch

from engram.aggregates import Aggregate, Update, weighted_mean
from engram.checks import require
from engram.derivatives import gradient
from engram.optimizers import descent
from engram.tree import add_scaled, marked, part
from engram.types import Batch, Companion, LocalRule, LossFn, Params, Scale

__all__ = ["feddyn", "feddyn_server"]

_GRADIENT: Final = Companion("own-gradient/", personal=True, copied=False)
_START = "start/"  # before the names, in the state, of the model that was received


def feddyn(loss: LossFn, *, eta: Scale, alpha: Scale) -> LocalRule:
    """Builds the client's part (Alg. 1), with gradient steps towards the minimum in (1).

        w <- w - eta (grad L(w) - h_k + alpha (w - w_t))                (1)
        h_k <- h_k - alpha (w - w_t)                                    after the last step

    from w_t. At the minimum in (1), h_k is the gradient of the client's loss there, by the
    first-order condition; it starts at 0.

    Args:
        loss: Mean loss over one batch.
        eta: Step size; > 0.
        alpha: Weight of the penalty; > 0. As it goes to 0, the steps become FedAvg's.

    Raises:
        ValueError: If a value is out of range.
    """
    require(eta > 0, "eta", eta, "positive")
    require(alpha > 0, "alpha", alpha, "positive")
    grad = gradient(loss)

    def init(w: Params, batch: Batch | None) -> Params:
        del batch
        return marked(part(w), _START)

    def direction(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
        (batch,) = batches
        here = part(w)
        d = add_scaled(grad(here, batch), -1.0, part(w, _GRADIENT.mark))
        return add_scaled(d, alpha, add_scaled(here, -1.0, part(u, _START))), u

    def finish(w: Params, u: Params) -> Params:
        away = add_scaled(part(w), -1.0, part(u, _START))
        return w | marked(add_scaled(part(w, _GRADIENT.mark), -alpha, away), _GRADIENT.mark)

    return LocalRule(
        init=init,
        step=descent(direction, eta),
        affine=True,
        direction=direction,
        eta=eta,
        companions=(_GRADIENT,),
        moved=part,
        finish=finish,
    )


def feddyn_server(clients: int) -> Aggregate:
    """Builds the server's part (Alg. 1), of the clients P that replied, |P| of m.

        h <- h - alpha (|P| / m) mean_P (w_k - w_t),    w_t+1 = mean_P w_k - h / alpha

    The state is ``-h / alpha``, in which alpha cancels out.

    Args:
        clients: m, of the whole federation; >= 1.

    Raises:
        ValueError: If ``clients`` is out of range.
    """
    require(clients >= 1, "num-clients", clients, "at least 1")

    def init(model: Params) -> Params:
        return {name: torch.zeros_like(leaf) for name, leaf in model.items()}

    def merge(model: Params, state: Params, updates: Sequence[Update]) -> tuple[Params, Params]:
        mean, share = weighted_mean(updates), sum(update.weight for update in updates) / clients
        state = add_scaled(state, share, add_scaled(mean, -1.0, model))
        return add_scaled(mean, 1.0, state), state

    return Aggregate(init=init, merge=merge, weighting="clients", additive=True)
