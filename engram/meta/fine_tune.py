"""Personalization at evaluation: a few gradient steps on a client's own rows."""

from collections.abc import Callable

from engram.core.checks import require
from engram.core.derivatives import gradient
from engram.core.tree import add_scaled
from engram.core.types import Batch, LossFn, Params, Scale


def fine_tune(loss: LossFn, *, lr: Scale, steps: int) -> Callable[..., Params]:
    """Builds ``(w, *batches) -> params``: ``steps`` gradient steps from w.

    Each is on the next of the batches, of which there is at least one; after the last one comes
    the first again. So with a client's only batch, each step is on all of its rows.

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

    def personalize(w: Params, *batches: Batch) -> Params:
        for number in range(steps):
            w = add_scaled(w, -lr, grad(w, batches[number % len(batches)]))
        return w

    return personalize
