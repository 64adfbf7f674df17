"""The meta-learner's steps as the paper writes them: gradients are taken at users' parameters.

Theta does not enter them, so all steps of a round are one. On class data they do no better than
random play: what is downhill at theta-hat^u need not be so at Theta.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engram.bandits.networks import Weights, forward, gradients, outer_parts
from engram.bandits.replay import Replay, kept_rows, of_each
from engram.bandits.stacks import Stack
from engram.bandits.training import penalized

__all__ = ["at_users", "of_prefixes"]

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]


def at_users(
    lasts: Stack, rows: Replay, runs: Ints, weights: Array, lots: Array, lam: Tensor
) -> Weights:
    """Returns the mean over users, by weights w_u, of gradients of (5) at theta-hat^u.

    The L1 term of (5) has no weights; it has them here, where a user's whole loss is weighted.

    Args:
        lasts: theta-hat, shapes (R, U, out, in).
        rows: Users' rows.
        runs: Of each group the run, shape (M,).
        weights: w_u of the users of each group, others 0, shape (M, U).
        lots: Uniform on [0, 1), shape (R, J, n): they draw J n rows of each user.
        lam: lambda, shape (R,).

    Returns:
        Of each group, shapes (M, out, in): what J steps of Algorithm 2 subtract, but for eta_2 J.
    """
    theta = tuple(stack.read() for stack in lasts)
    sample = of_each(rows, lots.reshape(len(lots), -1))
    each_user = penalized(gradients(theta, *sample), theta, lam)
    shares = torch.from_numpy(weights / weights.sum(axis=1, keepdims=True)).to(lam.dtype)
    pairs = list(zip(shares, runs, strict=True))
    return tuple(
        torch.stack([torch.tensordot(share, layer[run], dims=1) for share, run in pairs])
        for layer in each_user
    )


def of_prefixes(
    lasts: Stack, rows: Replay, runs: Ints, members: npt.NDArray[np.bool_], lots: Array
) -> Weights:
    """Returns sums of gradients of 1/2 (f(x_j) - r_j)^2 at theta-hat^(u_j): Algorithm 4.

    Theta is drawn from Theta_(0), ..., Theta_(n-1), where Theta_(j) has taken the steps of the
    first j of the group's n rows; so the steps taken are those of 0 to n - 1 rows.

    Args:
        lasts: theta-hat, shapes (R, U, out, in).
        rows: Users' rows, which come in the order of users, and of their places in the buffer:
            that of time, until old rows are overwritten.
        runs: Of each group the run, shape (M,).
        members: Of each group, shape (M, U).
        lots: Uniform on [0, 1), shape (M,): they draw how many.

    Returns:
        Of each group, shapes (M, out, in).
    """
    theta = tuple(stack.read() for stack in lasts)
    x, rewards = rows.x.read().mT, rows.rewards.read()
    outputs, seen = forward(theta, x)
    parts = outer_parts(theta, seen, outputs - rewards)
    counts = members * kept_rows(rows)[runs]
    taken = (lots * counts.sum(axis=1)).astype(np.intp)
    ends: Ints = np.cumsum(counts, axis=1)
    own = np.clip(taken[:, None] - ends + counts, 0, counts)
    masks = torch.from_numpy(np.arange(rewards.shape[2]) < own[..., None])
    return tuple(
        torch.stack(
            [
                ((delta[run] * mask[:, None]) @ below[run].mT).sum(dim=0)
                for run, mask in zip(runs, masks, strict=True)
            ]
        )
        for delta, below in reversed(parts)
    )
