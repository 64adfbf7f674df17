"""IFCA: a model for each cluster of clients, which choose by their losses which one they train.

Ghosh, Chung, Yin, Ramchandran. An Efficient Framework for Clustered Federated Learning. NeurIPS
2020. Below, Alg. 1 is that paper's.
"""

from collections.abc import Sequence
from typing import Final

import torch

from engram.aggregates import Aggregate, Update, mean
from engram.checks import require
from engram.derivatives import gradient
from engram.federated.components import drawn_apart, mark_of
from engram.optimizers import descent
from engram.tree import add_scaled, interpolate, marked, multiplied, part
from engram.types import Batch, Candidates, Companion, LocalRule, LossFn, Params, Scale

__all__ = ["ifca", "ifca_server"]

_CHOICE: Final = "choice/"  # before the numbers of models: 1 for the one that a client chose, or 0
_START: Final = "start/"  # before the names, in the state, of the models that were received


def ifca(loss: LossFn, *, eta: Scale, clusters: int) -> LocalRule:
    """Builds a client's round (Alg. 1, with model averaging).

        j = argmin_k L(w_k),    w_j <- w_j - eta grad L(w_j)

    The losses are those of the first batch, at the models that were received; of equal ones the
    first counts. The other models are returned as they came, with the choice as numbers 0 and 1,
    whose mean is the share of the clients that chose each model. Models start from draws of their
    own.

    Args:
        loss: Mean loss over one batch.
        eta: Step size; > 0.
        clusters: K, how many models there are; >= 1. With one this is FedAvg.

    Raises:
        ValueError: If a value is out of range.
    """
    require(eta > 0, "eta", eta, "positive")
    require(clusters >= 1, "clusters", clusters, "at least 1")
    grad = gradient(loss)
    numbers = tuple(map(str, range(clusters)))
    marks = dict(zip(numbers, map(mark_of, numbers), strict=True))

    def models(w: Params) -> tuple[Params, ...]:
        return tuple(part(w, mark) for mark in marks.values())

    def init(w: Params, batch: Batch | None) -> Params:
        losses = torch.stack([loss(model, batch) for model in models(w)])
        best = losses.nan_to_num(torch.inf, posinf=torch.inf).argmin(0)
        choice = {number: (best == int(number)).to(losses) for number in numbers}
        return marked(choice, _CHOICE) | marked(moved(w), _START)

    def moved(w: Params) -> Params:
        return {name: leaf for name, leaf in w.items() if not name.startswith(_CHOICE)}

    def direction(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
        (batch,) = batches
        choice, (first, *others) = part(u, _CHOICE), models(w)
        chosen = multiplied(first, choice["0"])
        for number, model in zip(numbers[1:], others, strict=True):
            chosen = add_scaled(chosen, choice[number], model)
        g, d = grad(chosen, batch), Params()
        for number, mark in marks.items():
            d |= marked(multiplied(g, choice[number]), mark)
        return d, u

    def finish(w: Params, u: Params) -> Params:
        # Weight decay and running statistics bear on all models; those not chosen are as they came.
        start, found = part(u, _START), dict(w)
        for number, mark in marks.items():
            back, moved_to = part(start, mark), part(w, mark)
            found |= marked(interpolate(back, moved_to, u[_CHOICE + number]), mark)
        return found | marked(part(u, _CHOICE), _CHOICE)

    return LocalRule(
        init=init,
        step=descent(direction, eta),
        needs_initial_batch=True,
        affine=True,
        direction=direction,
        eta=eta,
        companions=(
            *drawn_apart(clusters),
            Companion(_CHOICE, personal=False, copied=False, numbers=numbers),
        ),
        moved=moved,
        finish=finish,
        candidates=lambda w: Candidates(models(w)),
    )


def ifca_server() -> Aggregate:
    """Builds the server's part (Alg. 1), of the clients that replied.

        w_j <- sum_i s_ij w_ij / sum_i s_ij

    s_ij is 1 if client i chose model j, else 0. With c_j for the mean of s_ij and m_j for that of
    what clients return, ``w_j + (m_j - w_j) / c_j`` is the same, since the others return w_j. So
    a mean over several clients serves as well as their models. What nobody chose stays.
    """
    plain = mean()

    def merge(model: Params, state: Params, updates: Sequence[Update]) -> tuple[Params, Params]:
        merged, state = plain.merge(model, state, updates)
        for number, share in part(merged, _CHOICE).items():
            mark = mark_of(number)
            old, new = part(model, mark), part(merged, mark)
            if share > 0:
                merged |= marked(interpolate(old, new, 1 / share), mark)
        return merged | marked(part(model, _CHOICE), _CHOICE), state

    return plain._replace(merge=merge, means=True)
