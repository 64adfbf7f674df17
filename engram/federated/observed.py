"""Local steps in which a client also takes means of what its batches show.

What is observed stands beside the network's parameters, in arrays of any shape. The server sends
what is known so far, and a client returns what it has observed itself.
"""

from collections.abc import Mapping, Set
from typing import Final

import torch
from torch import Generator, Tensor

from engram.checks import require
from engram.derivatives import gradient
from engram.models import Model
from engram.optimizers import descent
from engram.tree import add_scaled, marked, multiplied, part
from engram.types import Batch, LocalRule, LossFn, Params, Scale

__all__ = ["SEEN", "noted", "noting", "observing", "received", "with_observed"]

SEEN: Final = "seen/"
"""Before the names of what is observed."""

_SUM, _STEPS = "sum/", "steps"  # in the state: of a round's observations, and their number


def with_observed(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> Model:
    """Returns a network with arrays of what is observed beside its parameters, at zero.

    What it is faster by is left out: that has no place for an array of another shape.

    Args:
        model: The network.
        shapes: The arrays' shapes, by their names without the mark.
    """

    def init(generator: Generator) -> Params:
        zeros = {name: torch.zeros(shape) for name, shape in shapes.items()}
        return model.init(generator) | marked(zeros, SEEN)

    return model._replace(
        init=init, features=None, dense_layers=0, together=None, statistics_together=None
    )


def received(w: Params) -> Params:
    """Returns what is known so far, by names without the mark, as constants of a loss."""
    return {name: leaf.detach() for name, leaf in part(w, SEEN).items()}


def noted(w: Params, observed: Params) -> Tensor:
    """Returns a term of a loss by which ``observing`` learns what a batch shows; shape ().

    It is the inner product of w's arrays with what is observed, so that this is its gradient by
    them, and no second pass through the network is needed. The network's gradient is as without it.

    Args:
        w: The parameters, with the arrays of what is observed.
        observed: What the batch shows, by the arrays' names without the mark.
    """
    terms = [(w[SEEN + name] * leaf.detach()).sum() for name, leaf in observed.items()]
    return torch.stack(terms).sum()


def observing(loss: LossFn, *, eta: Scale) -> LocalRule:
    """Builds ``w <- w - eta grad L(w)``, after which w has the round's mean observations.

    The mean is over the round's steps, each at the model before it.

    Args:
        loss: Mean loss over one batch, with a term ``noted``.
        eta: Step size; > 0.

    Raises:
        ValueError: If ``eta`` is not positive.
    """
    require(eta > 0, "eta", eta, "positive")
    grad = gradient(loss)

    def init(w: Params, batch: Batch | None) -> Params:
        del batch
        zeros = {name: torch.zeros_like(leaf) for name, leaf in part(w, SEEN).items()}
        return marked(zeros, _SUM) | {_STEPS: next(iter(w.values())).new_zeros(())}

    def direction(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
        (batch,) = batches
        g = grad(w, batch)
        total = add_scaled(part(u, _SUM), 1.0, part(g, SEEN))
        return part(g), marked(total, _SUM) | {_STEPS: u[_STEPS] + 1}

    def finish(w: Params, u: Params) -> Params:
        return w | marked(multiplied(part(u, _SUM), 1 / u[_STEPS]), SEEN)

    return LocalRule(
        init=init,
        step=descent(direction, eta),
        single_use=True,
        direction=direction,
        eta=eta,
        moved=part,
        finish=finish,
    )


def noting(rule: LocalRule, names: Set[str]) -> LocalRule:
    """Returns an observing rule whose steps add to some observations, and not to the others.

    Args:
        rule: As ``observing`` returns it.
        names: The arrays' names without the mark.
    """
    direction, sums = rule.direction, {_SUM + name for name in names}

    def some(before: Params, after: Params) -> Params:
        kept = {n: x for n, x in before.items() if n.startswith(_SUM) and n not in sums}
        return after | kept

    def step(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
        w, after = rule.step(w, u, batches)
        return w, some(u, after)

    def moves(w: Params, u: Params, batches: tuple[Batch, ...]) -> tuple[Params, Params]:
        assert direction is not None  # for mypy: an observing rule has it
        d, after = direction(w, u, batches)
        return d, some(u, after)

    return rule._replace(step=step, direction=moves)
