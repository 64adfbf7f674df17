"""Objectives: a loss with its derivatives, as each way to train computes them."""

from collections.abc import Callable, Set
from typing import Any

import torch
from torch import Tensor
from torch.func import grad
from torch.utils._pytree import tree_flatten, tree_unflatten

from engram.core.derivatives import LossWithDerivatives, all_at_once, hessian_product, twice
from engram.core.method import Objective
from engram.core.slots import pick
from engram.core.types import Batch, LossFn, Params

Criterion = Callable[[Tensor, Batch], Tensor]
Observing = Callable[..., tuple[Tensor, Any]]
Derivative = Callable[..., tuple[Params, Any]]


def _without(outputs: Tensor, batch: Batch) -> Tensor:
    del outputs, batch
    raise ValueError("this method needs a loss of outputs, and the loss has none")


def by_functions(loss: LossFn, criterion: Criterion = _without) -> Objective:
    """Builds the derivatives of one model's loss by ``torch.func``, which ``vmap`` can run."""

    def gradient(w: Params, batch: Batch, names: Set[str] | None = None) -> Params:
        moving = w if names is None else pick(w, names)
        found: Params = grad(lambda at: loss(w | at, batch))(moving)
        return found

    def differentiate(function: Observing, names: Set[str] | None = None) -> Derivative:
        def derivative(w: Any, *rest: Any) -> Any:
            if names is None:
                return grad(function, has_aux=True)(w, *rest)
            return grad(lambda at: function(w | at, *rest), has_aux=True)(pick(w, names))

        return derivative

    return Objective(loss, gradient, hessian_product(loss), criterion, differentiate)


def by_autograd(
    loss: LossFn, criterion: Criterion = _without, missed: dict[str, bool] | None = None
) -> Objective:
    """Builds the derivatives of one model's loss by torch's autograd, without ``torch.func``.

    They take as long as a training loop in plain torch, and exist for any network, also where
    ``torch.func`` has no rule.

    Args:
        loss: The loss.
        criterion: As ``Objective.criterion``.
        missed: Notes which parameters have had no gradient: see ``Stepper.missed``.
    """

    def differentiate(function: Observing, names: Set[str] | None = None) -> Derivative:
        def derivative(w: Any, *rest: Any) -> Any:
            leaves, form = tree_flatten(w if names is None else pick(w, names))
            at = [leaf.detach().requires_grad_() for leaf in leaves]
            moving = tree_unflatten(at, form)
            with torch.enable_grad():
                value, observed = function(moving if names is None else w | moving, *rest)
            value.backward()  # type: ignore[no-untyped-call]  # torch's
            if missed is not None and isinstance(moving, dict) and len(moving) == len(at):
                for name, leaf in zip(moving, at, strict=True):
                    missed[name] = missed.get(name, True) and leaf.grad is None
            found = [torch.zeros_like(x) if x.grad is None else x.grad for x in at]
            detached = [leaf.detach() for leaf in tree_flatten(observed)[0]]
            return tree_unflatten(found, form), tree_unflatten(detached, tree_flatten(observed)[1])

        return derivative

    def gradient(w: Params, batch: Batch, names: Set[str] | None = None) -> Params:
        found, _ = differentiate(lambda at, some: (loss(at, some), ()), names)(w, batch)
        return dict(found)

    def product(w: Params, batch: Batch, v: Params) -> Params:
        at = {name: leaf.detach().requires_grad_() for name, leaf in w.items()}
        inputs = list(at.values())
        with twice():
            first = torch.autograd.grad(
                loss(at, batch), inputs, create_graph=True, materialize_grads=True
            )
            pairs = zip(first, (v[name] for name in at), strict=True)
            moved = [(g, d) for g, d in pairs if g.requires_grad]
            found = torch.autograd.grad(
                [g for g, _ in moved], inputs, [d for _, d in moved], materialize_grads=True
            )
        return dict(zip(at, found, strict=True))

    return Objective(loss, gradient, product, criterion, differentiate)


def by_cohorts(loss: LossFn, losses: LossFn, criterion: Criterion = _without) -> Objective:
    """Builds the derivatives of one model's loss; ``vmap`` of them calls the cohort's loss once.

    Args:
        loss: The loss.
        losses: ``(params (c, ...), batch (c, ...)) -> (c,)``: the losses of c models.
        criterion: As ``Objective.criterion``.
    """
    summed = by_autograd(lambda w, batch: losses(w, batch).sum())
    product = all_at_once(summed.hessian_product)

    def gradient(w: Params, batch: Batch, names: Set[str] | None = None) -> Params:
        found: Params = all_at_once(lambda at, some: summed.gradient(at, some, names))(w, batch)
        return found

    return by_functions(loss, criterion)._replace(gradient=gradient, hessian_product=product)


def by_hand(loss: LossWithDerivatives, criterion: Criterion = _without) -> Objective:
    """Builds the objective of stacked models from a loss whose derivatives are written out."""

    def gradient(w: Params, batch: Batch, names: Set[str] | None = None) -> Params:
        if names is None:
            return loss.gradient(w, batch)
        return pick(loss.gradient(w, batch, names), names)

    return by_functions(loss, criterion)._replace(
        gradient=gradient, hessian_product=loss.hessian_product
    )
