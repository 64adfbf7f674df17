"""Personalization at evaluation: a few gradient steps on a client's support data."""

from collections.abc import Callable

from engram.checks import require
from engram.derivatives import gradient
from engram.tree import add_scaled
from engram.types import Batch, LossFn, Params

__all__ = ["fine_tune"]


def fine_tune(loss: LossFn, *, lr: float, steps: int) -> Callable[[Params, Batch], Params]:
    """Builds ``(w, support) -> params``: ``steps`` full-batch gradient steps from w.

    w itself is not changed, so one model can be personalized for any number of clients.

    Args:
        loss: Mean loss over one batch.
        lr: Step size; > 0.
        steps: Number of steps; >= 0, where 0 returns w.

    Raises:
        ValueError: If a value is out of range.
    """
    require(lr > 0, "adapt-lr", lr, "positive")
    require(steps >= 0, "adapt-steps", steps, "at least 0")
    grad = gradient(loss)

    def personalize(w: Params, support: Batch) -> Params:
        for _ in range(steps):
            w = add_scaled(w, -lr, grad(w, support))
        return w

    return personalize
