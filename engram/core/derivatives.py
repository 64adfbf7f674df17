"""Gradients and Hessian-vector products of a loss: by autograd, or by the loss's own formulas.

An objective is a loss with these, as each way to train computes them.
"""

import threading
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vjp
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from engram.core.method import Objective
from engram.core.slots import pick
from engram.core.types import Batch, LossFn, Params

Criterion = Callable[[Tensor, Batch], Tensor]
Observing = Callable[..., tuple[Tensor, Any]]
Derivative = Callable[..., tuple[Params, Any]]


@dataclass(frozen=True)
class LossWithDerivatives:
    """A loss with its own formulas for derivatives, faster than autograd's.

    It may apply to many models at once: parameters and value then have leading axes (clients, or
    runs and tasks). Rules that only add and scale parameters work on these unchanged.

    Attributes:
        value: ``(params, batch) -> loss``.
        gradient: ``(params, batch, names=None) -> gradient``, shaped as params: by those of these
            names at least; None: by all.
        hessian_product: ``(params, batch, v) -> hess v``, shaped as params.
        leading: Number of leading axes.
    """

    value: LossFn
    gradient: Callable[..., Params]
    hessian_product: Callable[[Params, Batch, Params], Params]
    leading: int

    def __call__(self, params: Params, batch: Batch) -> Tensor:
        """Returns the loss."""
        return self.value(params, batch)


_TWICE = threading.local()


@contextmanager
def twice() -> Iterator[None]:
    """Context of a loss with a gradient that is differentiated again."""
    _TWICE.depth = getattr(_TWICE, "depth", 0) + 1
    try:
        yield
    finally:
        _TWICE.depth -= 1


def differentiates_twice() -> bool:
    """Returns whether this is within ``twice``."""
    return getattr(_TWICE, "depth", 0) > 0


def vectorized() -> bool:
    """Returns whether ``vmap`` is under way: it hides the memory layout of arrays."""
    stack = torch._C._functorch.get_interpreter_stack() or []
    return any(level.key() == torch._C._functorch.TransformType.Vmap for level in stack)


def gradient(loss: LossFn) -> Callable[[Params, Batch], Params]:
    """Builds ``(w, batch) -> grad L(w)``."""
    if isinstance(loss, LossWithDerivatives):
        return loss.gradient
    found: Callable[[Params, Batch], Params] = grad(loss)
    return found


def hessian_product(loss: LossFn) -> Callable[[Params, Batch, Params], Params]:
    """Builds ``(w, batch, v) -> hess L(w) v``, without a d x d matrix."""
    if isinstance(loss, LossWithDerivatives):
        return loss.hessian_product
    differentiate = grad(loss)

    def product(w: Params, batch: Batch, v: Params) -> Params:
        _, pull, *_ = vjp(lambda at: differentiate(at, batch), w)
        (found,) = pull({name: v[name] for name in w})  # it is symmetric: v' hess = hess v
        return dict(found)

    return product


class _AllAtOnce(torch.autograd.Function):
    """Calls a function of many models' tensors; under ``vmap``, once for all of them."""

    @staticmethod
    def forward(function: Callable[..., tuple[Tensor, ...]], *leaves: Tensor) -> Any:
        return tuple(leaf[0] for leaf in function(*(leaf[None] for leaf in leaves)))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        del ctx, inputs, output  # it is not differentiated

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], function: Callable[..., Any], *leaves: Tensor
    ) -> Any:
        stacked = [
            leaf.expand(info.batch_size, *leaf.shape) if axis is None else leaf.movedim(axis, 0)
            for leaf, axis in zip(leaves, in_dims[1:], strict=True)
        ]
        found = function(*stacked)
        return found, (0,) * len(found)


def all_at_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turns a function of many models into one of a single model; ``vmap`` calls it once for all.

    Args:
        function: ``(*trees) -> tree``, of tensors that all have a leading axis of models.

    Returns:
        The same of tensors without that axis. It cannot be differentiated.
    """

    def call(*trees: Any) -> Any:
        leaves, form = tree_flatten(trees)
        shape: list[TreeSpec] = []

        def many(*stacked: Tensor) -> tuple[Tensor, ...]:
            with torch.enable_grad():
                found, its_form = tree_flatten(function(*tree_unflatten(stacked, form)))
            shape.append(its_form)
            return tuple(leaf.detach() for leaf in found)

        found = _AllAtOnce.apply(many, *leaves)  # type: ignore[no-untyped-call]  # torch's
        return tree_unflatten(found, shape[-1])

    return call


# --- Objectives ----------------------------------------------------------------------------------


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
    ``torch.func`` has no rule. ``missed`` notes parameters without one: see ``Stepper.missed``.
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
    """Builds the objective of stacked models from a loss with its own derivatives."""

    def gradient(w: Params, batch: Batch, names: Set[str] | None = None) -> Params:
        if names is None:
            return loss.gradient(w, batch)
        return pick(loss.gradient(w, batch, names), names)

    product = loss.hessian_product
    return by_functions(loss, criterion)._replace(gradient=gradient, hessian_product=product)
