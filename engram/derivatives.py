"""Gradients and Hessian-vector products of a loss: by differentiation, or as the loss has them."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.func import grad, vjp

from engram.types import Batch, LossFn, Params

__all__ = ["LossWithDerivatives", "gradient", "hessian_product"]


@dataclass(frozen=True)
class LossWithDerivatives:
    """A loss that brings its derivatives along, because it knows them better than autograd.

    It may stand for many models at once: its parameters then have leading axes (of clients, of
    runs and tasks), which its value has, too. A rule that only adds and scales parameters does
    not notice.

    Attributes:
        value: ``(params, batch) -> loss``.
        gradient: ``(params, batch) -> gradient``, as params.
        hessian_product: ``(params, batch, v) -> hess v``, as params.
        leading: Number of those axes.
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
