"""The two operations of memory-based MAML: adaptation and the meta-gradient."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from engram.core.checks import require
from engram.core.derivatives import gradient
from engram.core.tree import add_scaled
from engram.core.types import Batch, LossFn, Params, Scale
from engram.meta.curvature import curvature_correction


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
        hessian: How the Hessian is treated; one of ``curvature.HESSIANS``.

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
