"""Gradient descent of stacked networks on users' rows, and the paper's meta-gradients."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from engram.bandits.networks import Weights, descend, forward, gradients, outer_parts
from engram.bandits.replay import Drawn, ReplayBuffer, draw, drawn_rows, kept_rows, of_each
from engram.bandits.versioned_tensor import Stack
from engram.core.arrays import Array, Bools, Ints
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
    """Takes J steps of ``trained`` of one network in each run, (R, out, in), without the penalty.

    It learns from users' rows by their weights ``chosen``, (R, U); ``uniforms``, (R, J, n), draw
    the rows.
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
    """Takes J steps of ``trained`` where the rows are not at hand.

    ``gradient`` maps the step, from 0, and weights to the gradient of the loss without its penalty.
    """
    for step in range(steps):
        weights = descend(weights, penalized(gradient(step, weights), weights, lam), eta)
    return weights


def penalized(gradient: Weights, weights: Weights, lam: Tensor) -> Weights:
    """Adds the gradient of the penalty lam / sqrt(m) ||theta||_1."""
    if not lam.any():
        return gradient
    each = lam / weights[-1].shape[-1] ** 0.5
    return tuple(
        slope + each.reshape(-1, *[1] * (w.ndim - 1)) * w.sign()
        for slope, w in zip(gradient, weights, strict=True)
    )


def at_users(
    lasts: Stack, rows: ReplayBuffer, runs: Ints, weights: Array, uniforms: Array, lam: Tensor
) -> Weights:
    """Returns the mean over users, by weights w_u, of gradients of (5) at theta-hat^u (Eq. 6).

    It does not depend on Theta, so all steps of a round are one step. On class data it does no
    better than random play: a direction of descent at theta-hat^u need not be one at Theta.

    In (5) the L1 term has no weights; here each user's whole loss is weighted, the L1 term
    included. theta-hat has shapes (R, U, out, in); ``weights``, (M, U), are w_u of each group's
    users, and 0 for others; uniform numbers in [0, 1), (R, J, n), draw J n rows of each user.

    Returns:
        For each group, shapes (M, out, in): what J steps of Algorithm 2 subtract, divided by eta_2
        J.
    """
    theta = tuple(stack.read() for stack in lasts)
    sample = of_each(rows, uniforms.reshape(len(uniforms), -1))
    each_user = penalized(gradients(theta, *sample), theta, lam)
    shares = torch.from_numpy(weights / weights.sum(axis=1, keepdims=True)).to(lam.dtype)
    pairs = list(zip(shares, runs, strict=True))
    return tuple(
        torch.stack([torch.tensordot(share, layer[run], dims=1) for share, run in pairs])
        for layer in each_user
    )


def of_prefixes(
    lasts: Stack, rows: ReplayBuffer, runs: Ints, members: Bools, uniforms: Array
) -> Weights:
    """Returns sums of gradients of 1/2 (f(x_j) - r_j)^2 at theta-hat^(u_j): Algorithm 4.

    Algorithm 4 draws Theta from Theta_(0), ..., Theta_(n-1), where Theta_(j) has taken the steps of
    the first j of the group's n rows. So this sums over a random prefix of 0 to n - 1 rows, ordered
    by user and by place in the buffer (by time, until old rows are overwritten). Uniform numbers in
    [0, 1), (M,), draw its length.

    Returns:
        For each group, shapes (M, out, in).
    """
    theta = tuple(stack.read() for stack in lasts)
    x, rewards = rows.x.read().mT, rows.rewards.read()
    outputs, seen = forward(theta, x)
    parts = outer_parts(theta, seen, outputs - rewards)
    counts = members * kept_rows(rows)[runs]
    taken = (uniforms * counts.sum(axis=1)).astype(np.intp)
    ends: Ints = np.cumsum(counts, axis=1)
    own = np.clip(taken[:, None] - ends + counts, 0, counts)
    masks = torch.from_numpy(np.arange(rewards.shape[2]) < own[..., None])
    pairs = list(zip(runs, masks[:, :, None], strict=True))
    return tuple(
        torch.stack([((delta[run] * mask) @ below[run].mT).sum(dim=0) for run, mask in pairs])
        for delta, below in reversed(parts)
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


def check_sizes(hidden: Sequence[int], counts: Mapping[str, int]) -> None:
    """Raises ``ValueError`` unless widths and counts are at least 1."""
    for name, count in counts.items():
        require(count >= 1, name, count, "at least 1")
    require(len(hidden) >= 1 and min(hidden) >= 1, "hidden", tuple(hidden), "one or more widths")


def check_weights(sizes: Mapping[str, Tensor], *positive: str) -> None:
    """Raises ``ValueError`` unless all are finite and at least 0, and some are above 0."""
    for name, size in sizes.items():
        require((size >= 0) & size.isfinite(), name, size.tolist(), "finite and at least 0")
    for name in positive:
        require(sizes[name] > 0, name, sizes[name].tolist(), "above 0")
