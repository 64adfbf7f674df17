"""Stochastic gradient descent of a stack of networks on rows that users were shown."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engram.bandits.networks import Weights, descend, gradients
from engram.bandits.replay import Replay, draw, drawn_rows, kept_rows
from engram.checks import require

__all__ = ["descended", "penalized", "per_run", "trained"]

Array = npt.NDArray[np.float64]


def trained(
    weights: Weights,
    rows: Replay,
    runs: npt.NDArray[np.intp],
    users: Array,
    lots: Array,
    eta: Tensor,
    lam: Tensor,
) -> Weights:
    """Takes J steps of descent on 1/2 mean (f(x; theta) - r)^2 + lam / sqrt(m) ||theta||_1.

    Args:
        weights: Of M networks, shapes (M, out, in).
        rows: What may be drawn.
        runs: Of each network the run, shape (M,).
        users: The weights w_u of users' rows for each network, shape (M, U).
        lots: Uniform on [0, 1), shape (M, J, n): each draws a row.
        eta: Step sizes, shape (M,).
        lam: Shape (M,), >= 0.
    """
    sample = drawn_rows(rows, draw(kept_rows(rows)[runs], runs, users, lots))

    def slopes(step: int, at: Weights) -> Weights:
        return gradients(at, *sample.step(step))

    return descended(weights, slopes, lots.shape[1], eta, lam)


def descended(
    weights: Weights,
    slopes: Callable[[int, Weights], Weights],
    steps: int,
    eta: Tensor,
    lam: Tensor,
) -> Weights:
    """Takes steps of descent on a loss + lam / sqrt(m) ||theta||_1.

    Args:
        weights: Of M networks, shapes (M, out, in).
        slopes: The loss's gradient in a step, from 0, at given weights.
        steps: J.
        eta: Step sizes, shape (M,).
        lam: Shape (M,), >= 0.
    """
    for step in range(steps):
        weights = descend(weights, penalized(slopes(step, weights), weights, lam), eta)
    return weights


def penalized(slopes: Weights, weights: Weights, lam: Tensor) -> Weights:
    """Returns the slopes of a loss to which lam / sqrt(m) ||theta||_1 is added."""
    if not lam.any():
        return slopes
    each = lam / weights[-1].shape[-1] ** 0.5
    return tuple(
        slope + each.reshape(-1, *[1] * (w.ndim - 1)) * w.sign()
        for slope, w in zip(slopes, weights, strict=True)
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
