"""Gradients and Hessian-vector products of a loss: by autograd, or by the loss's own formulas."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.func import grad, vjp

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


def gradient(loss: LossFn) -> Callable[[Params, Batch], Params]:
    """Builds ``(w, batch) -> grad L(w)``."""
    return loss.gradient if isinstance(loss, LossWithDerivatives) else grad(loss)


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
