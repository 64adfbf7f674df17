"""FedEM: each client's distribution is a mixture, with weights of its own, of common components.

Marfoq, Neglia, Bellet, Kameni, Vidal. Federated Multi-Task Learning under a Mixture of
Distributions. NeurIPS 2021. Below, Alg. 2 is that paper's.
"""

from typing import Final

import torch
from torch import Tensor

from engram.checks import require
from engram.derivatives import gradient
from engram.federated.components import drawn_apart, mark_of
from engram.mixtures import row_losses
from engram.optimizers import descent
from engram.tree import marked, part
from engram.types import (
    Batch,
    Candidates,
    Companion,
    LocalRule,
    LossFn,
    Params,
    Scale,
    Weighted,
)

__all__ = ["fedem"]

_WEIGHT: Final = "own-weight/"  # before a component's number: by how much its weight exceeds 1/M
_START: Final = "start/"  # before the names, in the state, of the components that were received
_SUM, _ROWS = "sum/", "rows"  # in the state: of a round's responsibilities so far, and their number
_LEAST: Final = 1e-20  # of a weight, whose logarithm is taken


def fedem(loss: LossFn, *, eta: Scale, components: int) -> LocalRule:
    """Builds a client's round (Alg. 2): an expectation step, and a maximization step.

        q_i(m) = pi_m exp(-l(theta_m, i)) / sum_m' pi_m' exp(-l(theta_m', i))
        pi_m <- mean_i q_i(m)
        theta_m <- theta_m - eta grad mean_i q_i(m) l(theta_m, i)

    The responsibilities q of a row i are those of the components that were received and of the
    weights pi that the client kept, throughout the round; each step takes those of its batch. The
    paper has them, and their mean, of all rows of a client: so it is here where a round is an
    epoch or several, and otherwise the mean is over the rows of the round's batches. Components
    start from draws of their own, and weights at 1/M. A client is served by the mixture of what the
    components predict, with its weights.

    Args:
        loss: Mean loss over one batch, or the sum over one that is ``Weighted``; a negative
            log-likelihood.
        eta: Step size; > 0.
        components: M, how many there are; >= 1. With one this is FedAvg.

    Raises:
        ValueError: If a value is out of range.
    """
    require(eta > 0, "eta", eta, "positive")
    require(components >= 1, "components", components, "at least 1")
    grad = gradient(loss)
    numbers = tuple(map(str, range(components)))

    def models(w: Params) -> tuple[Params, ...]:
        return tuple(part(w, mark_of(number)) for number in numbers)

    def moved(w: Params) -> Params:
        return {name: leaf for name, leaf in w.items() if not name.startswith(_WEIGHT)}

    def weights(w: Params) -> Tensor:
        away = torch.stack([w[_WEIGHT + number] for number in numbers])
        return (away + 1 / components).clamp(min=_LEAST)

    def init(w: Params, batch: Batch | None) -> Params:
        del batch
        zero = torch.zeros_like(w[_WEIGHT + numbers[0]])
        sums = dict.fromkeys(numbers, zero)
        return marked(moved(w), _START) | marked(sums, _SUM) | {_ROWS: zero}

    def direction(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
        (batch,) = batches
        losses = [row_losses(loss, model, batch) for model in models(part(u, _START))]
        q = (weights(w).log()[:, None] - torch.stack(losses)).softmax(0)
        rows, d = q.shape[1], Params()
        for number, model, own in zip(numbers, models(w), q, strict=True):
            d |= marked(grad(model, Weighted(batch, own / rows)), mark_of(number))
        sums = {n: u[_SUM + n] + own.sum() for n, own in zip(numbers, q, strict=True)}
        return d, u | marked(sums, _SUM) | {_ROWS: u[_ROWS] + rows}

    def finish(w: Params, u: Params) -> Params:
        away = {n: total / u[_ROWS] - 1 / components for n, total in part(u, _SUM).items()}
        return w | marked(away, _WEIGHT)

    return LocalRule(
        init=init,
        step=descent(direction, eta),
        direction=direction,
        eta=eta,
        companions=(
            *drawn_apart(components),
            Companion(_WEIGHT, personal=True, copied=False, numbers=numbers),
        ),
        moved=moved,
        finish=finish,
        candidates=lambda w: Candidates(models(w), weights(w)),
    )
