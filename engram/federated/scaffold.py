"""SCAFFOLD: local steps that are corrected for how a client differs from the others.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning. ICML 2020. Below, equations and Alg. 1 are of that paper; c is the server's
control variate and c_i a client's.
"""

from collections.abc import Sequence
from typing import Final

import torch

from engram.aggregates import Aggregate, Update, weighted_mean
from engram.checks import require
from engram.derivatives import gradient
from engram.optimizers import descent
from engram.tree import add_scaled, interpolate, marked, part
from engram.types import Batch, Companion, LocalRule, LossFn, Params, Scale

__all__ = ["scaffold", "scaffold_server"]

_SERVER: Final = Companion("control/", personal=False, copied=False)
_CLIENT: Final = Companion("own-control/", personal=True, copied=False)
_MEAN, _STEPS = "mean/", "steps"  # in the state: of a round's gradients so far, and their number


def scaffold(loss: LossFn, *, eta: Scale) -> LocalRule:
    """Builds the client's part (Alg. 1, lines 6 to 13) with option II for its control variate.

        y <- y - eta (g(y) - c_i + c)                                   (3)
        c_i+ = c_i - c + (x - y) / (K eta)                              (4, option II)

    After K steps from x. By (3), (4) is the mean of the round's K gradients g, which is how it is
    computed here: so it does not depend on the optimizer that takes the place of (3). A client
    returns ``c + (c_i+ - c_i)`` in place of c. If its reply is lost for good, c lacks that change.

    Args:
        loss: Mean loss over one batch.
        eta: Step size; > 0.

    Raises:
        ValueError: If ``eta`` is not positive.
    """
    require(eta > 0, "eta", eta, "positive")
    grad = gradient(loss)

    def init(w: Params, batch: Batch | None) -> Params:
        del batch
        zeros = {name: torch.zeros_like(leaf) for name, leaf in part(w).items()}
        return marked(zeros, _MEAN) | {_STEPS: next(iter(zeros.values())).new_zeros(())}

    def direction(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
        (batch,) = batches
        g, steps = grad(part(w), batch), u[_STEPS] + 1
        mean = interpolate(part(u, _MEAN), g, 1 / steps)
        corrected = add_scaled(g, -1.0, part(w, _CLIENT.mark))
        corrected = add_scaled(corrected, 1.0, part(w, _SERVER.mark))
        return corrected, marked(mean, _MEAN) | {_STEPS: steps}

    def finish(w: Params, u: Params) -> Params:
        own = part(u, _MEAN)
        change = add_scaled(own, -1.0, part(w, _CLIENT.mark))
        server = add_scaled(part(w, _SERVER.mark), 1.0, change)
        return w | marked(server, _SERVER.mark) | marked(own, _CLIENT.mark)

    return LocalRule(
        init=init,
        step=descent(direction, eta),
        affine=True,
        direction=direction,
        eta=eta,
        companions=(_SERVER, _CLIENT),
        moved=part,
        finish=finish,
    )


def scaffold_server(eta: float, clients: int) -> Aggregate:
    """Builds the server's part (Alg. 1, lines 16 and 17), of the clients S that replied.

        x <- x + eta mean_S (y_i - x),    c <- c + (|S| / N) mean_S (c_i+ - c_i)

    Args:
        eta: The server's step size; > 0. 1 takes the mean of the models.
        clients: N, of the whole federation; >= 1.

    Raises:
        ValueError: If a value is out of range.
    """
    require(eta > 0, "server-eta", eta, "positive")
    require(clients >= 1, "num-clients", clients, "at least 1")

    def init(model: Params) -> Params:
        del model
        return {}

    def merge(model: Params, state: Params, updates: Sequence[Update]) -> tuple[Params, Params]:
        mean, share = weighted_mean(updates), sum(update.weight for update in updates) / clients
        control = interpolate(part(model, _SERVER.mark), part(mean, _SERVER.mark), share)
        merged = interpolate(part(model), part(mean), eta) | marked(control, _SERVER.mark)
        return {name: merged[name] for name in model}, state

    return Aggregate(init=init, merge=merge, weighting="clients", additive=True)
