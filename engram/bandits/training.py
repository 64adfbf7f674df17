"""Stochastic gradient descent of a stack of networks on rows that users were shown."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engram.bandits.networks import Weights, descend, forward, outer_parts
from engram.bandits.replay import Drawn, Replay, drawn_rows
from engram.checks import require

__all__ = ["descended", "penalized", "per_run", "trained"]

Array = npt.NDArray[np.float64]


def trained(rows: Replay, weights: Weights, drawn: Drawn, eta: Tensor, lam: Tensor) -> Weights:
    """Takes J steps of descent on 1/2 mean (f(x; theta) - r)^2 + lam / sqrt(m) ||theta||_1.

    Args:
        rows: What was drawn from.
        weights: Of M networks, shapes (M, out, in); they stay as they are.
        drawn: Rows for each, entries (M, J, n).
        eta: Step sizes, shape (M,).
        lam: Shape (M,), >= 0.
    """
    sample, size = drawn_rows(rows, drawn), eta[:, None]
    penalty = (eta * lam / weights[-1].shape[-1] ** 0.5)[:, None, None] if lam.any() else None
    # Changed in place, a step's gradient is added by the product that makes it: half the time.
    weights = tuple(w.clone() for w in weights)
    for step in range(drawn.users.shape[1]):
        x, rewards, shares = sample.step(step)
        outputs, seen = forward(weights, x)
        parts = outer_parts(weights, seen, size * shares * (rewards - outputs))
        for w, (delta, below) in zip(weights, reversed(parts), strict=True):
            if penalty is not None:
                w.sub_(penalty * w.sign())
            w.baddbmm_(delta, below.mT)
    return weights


def descended(
    weights: Weights,
    gradient: Callable[[int, Weights], Weights],
    steps: int,
    eta: Tensor,
    lam: Tensor,
) -> Weights:
    """Takes steps of descent on a loss + lam / sqrt(m) ||theta||_1, as ``trained`` does.

    Args:
        weights: Of M networks, shapes (M, out, in).
        gradient: The loss's gradient in a step, from 0, at given weights, where no rows are.
        steps: J.
        eta: Step sizes, shape (M,).
        lam: Shape (M,), >= 0.
    """
    for step in range(steps):
        weights = descend(weights, penalized(gradient(step, weights), weights, lam), eta)
    return weights


def penalized(gradients: Weights, weights: Weights, lam: Tensor) -> Weights:
    """Returns the slopes of a loss to which lam / sqrt(m) ||theta||_1 is added."""
    if not lam.any():
        return gradients
    each = lam / weights[-1].shape[-1] ** 0.5
    return tuple(
        gradient + each.reshape(-1, *[1] * (w.ndim - 1)) * w.sign()
        for gradient, w in zip(gradients, weights, strict=True)
    )


def per_run(
    runs: int, dtype: torch.dtype = torch.float32, **settings: float | Array
) -> dict[str, Tensor]:
    """Returns each setting as shape (R,), from a number or one number for each run."""
    found = {}
    for name, value in settings.items():
        given = np.asarray(value, dtype=np.float64)
        require(given.shape in ((), (runs,)), f"{name}'s shape", given.shape, f"() or ({runs},)")
        found[name] = torch.from_numpy(np.broadcast_to(given, (runs,)).copy()).to(dtype)
    return found
