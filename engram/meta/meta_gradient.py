"""Adaptation and the meta-gradient, with three treatments of the Hessian."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from engram.core.checks import require
from engram.core.derivatives import gradient, hessian_product
from engram.core.tree import add_scaled, norm
from engram.core.types import Batch, LossFn, Params, Scale

HESSIANS = ("exact", "first-order", "finite-difference")


class MetaGradient(NamedTuple):
    """Adaptation, and the meta-gradient at an adapted model or memory.

    Attributes:
        adapt: ``(w, batch) -> w - alpha grad L(w)``.
        at: ``(w, u, batches) -> (I - alpha hess L2(w)) grad L3(u)``, where Li is the loss on the
            i-th of a step's three independent batches. ``batches`` are the second and the third,
            or the third alone in the first-order variant.
        batches: Number of batches that ``at`` takes: 2 or 1.
    """

    adapt: Callable[[Params, Batch], Params]
    at: Callable[[Params, Params, Sequence[Batch]], Params]
    batches: int


def meta_gradient(loss: LossFn, alpha: Scale, hessian: str) -> MetaGradient:
    """Builds both operations for a loss.

    Args:
        loss: Mean loss over one batch; twice differentiable in the parameters.
        alpha: Adaptation step size, in parameter units per unit of gradient; >= 0.
        hessian: How the Hessian is treated; one of ``meta_gradient.HESSIANS``.

    Raises:
        ValueError: If ``alpha`` is negative, or the variant is unknown.
    """
    require(alpha >= 0, "alpha", alpha, "at least 0")
    grad = gradient(loss)
    correct = curvature_correction(loss, alpha, hessian)

    def adapt(w: Params, batch: Batch) -> Params:
        return add_scaled(w, -alpha, grad(w, batch))

    def at(w: Params, u: Params, batches: Sequence[Batch]) -> Params:
        *second, third = batches
        return correct(w, second[0] if second else None, grad(u, third))

    return MetaGradient(adapt, at, batches=1 if hessian == "first-order" else 2)


def curvature_correction(
    loss: LossFn, alpha: Scale, hessian: str
) -> Callable[[Params, Batch, Params], Params]:
    """Builds ``(w, batch, g) -> (I - alpha hess L(w)) g``, with L the loss on the batch.

    No d x d matrix is formed. The variants are those of Fallah, Mokhtari, Ozdaglar.
    Personalized Federated Learning with Theoretical Guarantees. NeurIPS 2020, Sec. 3:

    - ``exact``: a Hessian-vector product.
    - ``first-order``: the Hessian is replaced by zero, and g returned (FO-MAML).
    - ``finite-difference``: ``hess L(w) g`` is replaced by the central difference
      ``(grad L(w + delta g) - grad L(w - delta g)) / (2 delta)`` (HF-MAML), with an error
      of order ``delta^2`` that vanishes on quadratics.

    Raises:
        ValueError: If ``hessian`` is none of these.
    """
    require(hessian in HESSIANS, "hessian", hessian, f"one of {', '.join(HESSIANS)}")
    grad, product = gradient(loss), hessian_product(loss)
    leading: int = getattr(loss, "leading", 0)

    def exact(w: Params, batch: Batch, g: Params) -> Params:
        return add_scaled(g, -alpha, product(w, batch, g))

    def first_order(w: Params, batch: Batch, g: Params) -> Params:
        del w, batch
        return g

    def finite_difference(w: Params, batch: Batch, g: Params) -> Params:
        # The step delta |g| that balances truncation (delta^2) against rounding
        # (eps / delta) is the cube root of eps, at the scale of w. Where g = 0, delta is
        # immaterial as long as it is finite: both gradients are the same.
        info = torch.finfo(next(iter(w.values())).dtype)
        scale = info.eps ** (1 / 3) * (1 + norm(w, leading))
        delta = scale / norm(g, leading).clamp_min(info.tiny**0.5)
        ahead = grad(add_scaled(w, delta, g), batch)
        behind = grad(add_scaled(w, -delta, g), batch)
        return add_scaled(g, -alpha / (2 * delta), add_scaled(ahead, -1.0, behind))

    return dict(zip(HESSIANS, (exact, first_order, finite_difference), strict=True))[hessian]


def fine_tune(loss: LossFn, *, lr: Scale, steps: int) -> Callable[..., Params]:
    """Builds ``(w, *batches) -> params``: ``steps`` gradient steps from w.

    Each is on the next of the batches, of which there is at least one; after the last one comes
    the first again. So with a client's only batch, each step is on all of its rows.

    w itself is not changed, so one model can be personalized for any number of clients.

    Raises:
        ValueError: If a value is out of range.
    """
    require(lr > 0, "adapt-lr", lr, "positive")
    require(steps >= 0, "adapt-steps", steps, "at least 0")
    grad = gradient(loss)

    def personalize(w: Params, *batches: Batch) -> Params:
        for number in range(steps):
            w = add_scaled(w, -lr, grad(w, batches[number % len(batches)]))
        return w

    return personalize
