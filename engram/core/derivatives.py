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

from engram.core.types import Batch, LossFn, Params


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


def vectorized() -> bool:
    """Returns whether ``vmap`` is under way, which does not tell how arrays lie in memory."""
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
