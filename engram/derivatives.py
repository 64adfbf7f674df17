"""Gradients and Hessian-vector products of a loss: by autograd, or by the loss's own formulas."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vjp
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from engram.types import Batch, LossFn, Params

__all__ = ["LossWithDerivatives", "gradient", "hessian_product"]


@dataclass(frozen=True)
class LossWithDerivatives:
    """A loss with its own formulas for derivatives, faster than autograd's.

    It may apply to many models at once: parameters and value then have leading axes (clients, or
    runs and tasks). Rules that only add and scale parameters work on these unchanged.

    Attributes:
        value: ``(params, batch) -> loss``.
        gradient: ``(params, batch) -> gradient``, shaped as params.
        hessian_product: ``(params, batch, v) -> hess v``, shaped as params.
        leading: Number of leading axes.
    """

    value: LossFn
    gradient: Callable[[Params, Batch], Params]
    hessian_product: Callable[[Params, Batch, Params], Params]
    leading: int

    def __call__(self, params: Params, batch: Batch) -> Tensor:
        """Returns the loss."""
        return self.value(params, batch)


def by_autograd(loss: LossFn) -> LossWithDerivatives:
    """Builds the derivatives of one model's loss by torch's autograd, without ``torch.func``.

    They are the same, and cost what a training loop in plain torch costs.
    """

    def leaves(w: Params) -> Params:
        return {name: leaf.detach().requires_grad_() for name, leaf in w.items()}

    def gradient(w: Params, batch: Batch) -> Params:
        moving, still = _parted(w)
        at = leaves(moving)
        value = loss(w | at, batch)
        found = torch.autograd.grad(value, list(at.values()), materialize_grads=True)
        return _whole(w, dict(zip(at, found, strict=True)), still)

    def product(w: Params, batch: Batch, v: Params) -> Params:
        at = leaves(w)
        inputs, directions = list(at.values()), [v[name] for name in at]
        with twice():
            first = torch.autograd.grad(
                loss(at, batch), inputs, create_graph=True, materialize_grads=True
            )
            pairs = zip(first, directions, strict=True)
            moved = [(g, d) for g, d in pairs if g.requires_grad]
            found = torch.autograd.grad(
                [g for g, _ in moved],
                inputs,
                [d for _, d in moved],
                materialize_grads=True,
            )
        return dict(zip(at, found, strict=True))

    return LossWithDerivatives(loss, gradient, product, leading=0)


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


def by_cohorts(loss: LossFn, losses: LossFn) -> LossWithDerivatives:
    """Builds the derivatives of one model's loss, which ``vmap`` takes for many models at once.

    Args:
        loss: The loss.
        losses: ``(params (c, ...), batch (c, ...)) -> (c,)``, the same of c models.
    """
    summed = by_autograd(lambda w, batch: losses(w, batch).sum())
    gradient, product = all_at_once(summed.gradient), all_at_once(summed.hessian_product)
    return LossWithDerivatives(loss, gradient, product, leading=0)


_TWICE = threading.local()


@contextmanager
def twice() -> Iterator[None]:
    """Context in which a loss is computed whose gradient is differentiated again."""
    _TWICE.depth = getattr(_TWICE, "depth", 0) + 1
    try:
        yield
    finally:
        _TWICE.depth -= 1


def differentiates_twice() -> bool:
    """Returns whether a loss is being computed whose gradient is differentiated again."""
    return getattr(_TWICE, "depth", 0) > 0


_HELD = threading.local()


@contextmanager
def moving_only(moves: Callable[[str], bool]) -> Iterator[None]:
    """Treats some parameters as constants; their gradients by autograd are zero.

    Args:
        moves: ``name -> bool``: False for a parameter that is constant. Companion arrays, whose
            names have a slash, are never constant.
    """
    before = getattr(_HELD, "moves", None)
    _HELD.moves = moves
    try:
        yield
    finally:
        _HELD.moves = before


def _parted(w: Params) -> tuple[Params, Params]:
    """Returns the parameters that vary, and the constant ones."""
    moves = getattr(_HELD, "moves", None)
    if moves is None:
        return w, {}
    found = {name for name in w if "/" in name or moves(name)}
    moving = {name: leaf for name, leaf in w.items() if name in found}
    return (moving, {n: x for n, x in w.items() if n not in found}) if moving else (w, {})


def _whole(w: Params, found: Params, still: Params) -> Params:
    """Returns a gradient of all parameters, in their order, with zeros for constant ones."""
    zeros = {name: leaf.new_zeros(()).expand(leaf.shape) for name, leaf in still.items()}
    return {name: found[name] if name in found else zeros[name] for name in w}


def gradient(loss: LossFn) -> Callable[[Params, Batch], Params]:
    """Builds ``(w, batch) -> grad L(w)``."""
    if isinstance(loss, LossWithDerivatives):
        return loss.gradient

    def differentiated(w: Params, batch: Batch) -> Params:
        moving, still = _parted(w)
        return _whole(w, grad(lambda at: loss(w | at, batch))(moving), still)

    return differentiated


def hessian_product(loss: LossFn) -> Callable[[Params, Batch, Params], Params]:
    """Builds ``(w, batch, v) -> hess L(w) v``, without a d x d matrix."""
    if isinstance(loss, LossWithDerivatives):
        return loss.hessian_product
    differentiate = grad(loss)

    def product(w: Params, batch: Batch, v: Params) -> Params:
        transposed_product = vjp(lambda at: differentiate(at, batch), w)[1]
        (result,) = transposed_product(v)  # a Hessian is symmetric, so v' hess = hess v
        return result  # type: ignore[no-any-return]  # torch.func is not annotated

    return product
