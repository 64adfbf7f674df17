"""Stochastic gradient descent of a stack of networks on users' rows."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from engram.bandits.networks import Weights, descend, forward, outer_parts
from engram.bandits.replay import Drawn, ReplayBuffer, draw, drawn_rows, kept_rows
from engram.core.arrays import Array
from engram.core.checks import require


def trained(
    rows: ReplayBuffer, weights: Weights, drawn: Drawn, eta: Tensor, lam: Tensor
) -> Weights:
    """Takes J steps of descent on 1/2 mean (f(x; theta) - r)^2 + lam / sqrt(m) ||theta||_1.

    Args:
        rows: The replay buffers drawn from.
        weights: Weights of M networks, shapes (M, out, in); they are not changed.
        drawn: The numbers of the rows for each network, entries (M, J, n).
        eta: Step sizes, shape (M,).
        lam: lambda >= 0, shape (M,).
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


def trained_alone(
    rows: ReplayBuffer, weights: Weights, chosen: Array, eta: Tensor, uniforms: Array
) -> Weights:
    """Takes J steps of ``trained`` of one network in each run, without the penalty.

    Args:
        rows: The replay buffers drawn from.
        weights: Weights of the networks, shapes (R, out, in).
        chosen: Weights of the users from whose rows it learns, shape (R, U).
        eta: Step sizes, shape (R,).
        uniforms: Uniform numbers, shape (R, J, n), which draw the rows.
    """
    drawn = draw(kept_rows(rows), np.arange(len(chosen)), chosen, uniforms)
    return trained(rows, weights, drawn, eta, torch.zeros_like(eta))


def descended(
    weights: Weights,
    gradient: Callable[[int, Weights], Weights],
    steps: int,
    eta: Tensor,
    lam: Tensor,
) -> Weights:
    """Takes the steps of ``trained`` by a gradient function, where the rows are not at hand.

    Args:
        weights: Weights of M networks, shapes (M, out, in).
        gradient: ``(step, weights) -> gradient`` of the loss without its penalty, steps from 0.
        steps: J.
        eta: Step sizes, shape (M,).
        lam: lambda >= 0, shape (M,).
    """
    for step in range(steps):
        weights = descend(weights, penalized(gradient(step, weights), weights, lam), eta)
    return weights


def penalized(gradients: Weights, weights: Weights, lam: Tensor) -> Weights:
    """Adds the gradient of the penalty lam / sqrt(m) ||theta||_1."""
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
    """Returns each setting in shape (R,), from one number or one number per run."""
    found = {}
    for name, value in settings.items():
        given = np.asarray(value, dtype=np.float64)
        require(given.shape in ((), (runs,)), f"{name}'s shape", given.shape, f"() or ({runs},)")
        found[name] = torch.from_numpy(np.broadcast_to(given, (runs,)).copy()).to(dtype)
    return found
