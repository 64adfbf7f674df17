"""Personalization at evaluation: a few gradient steps on a client's support data."""

from collections.abc import Callable

from engram.checks import require
from engram.meta.fedavg import fedavg
from engram.optimizers import Name, with_optimizer
from engram.types import Batch, LossFn, Params

__all__ = ["fine_tune"]


def fine_tune(
    loss: LossFn, *, lr: float, steps: int, optimizer: Name = "sgd"
) -> Callable[[Params, Batch], Params]:
    """Builds ``(w, support) -> params``: ``steps`` full-batch gradient steps from w.

    w itself is not changed, so one model can be personalized for any number of clients.

    Args:
        loss: Mean loss over one batch.
        lr: Step size; > 0.
        steps: Number of steps; >= 0, where 0 returns w.
        optimizer: Of ``engram.optimizers``, with a momentum of 0.9.

    Raises:
        ValueError: If a value is out of range.
    """
    require(lr > 0, "adapt-lr", lr, "positive")
    require(steps >= 0, "adapt-steps", steps, "at least 0")
    rule = with_optimizer(fedavg(loss, eta=lr), optimizer)

    def personalize(w: Params, support: Batch) -> Params:
        u = rule.init(w, None)
        for _ in range(steps):
            w, u = rule.step(w, u, (support,))
        return w

    return personalize
