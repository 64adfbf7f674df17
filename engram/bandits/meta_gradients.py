"""The meta-learner's steps as the paper writes them: gradients are taken at users' parameters.

They do not depend on Theta, so all steps of a round are one step. On class data they do no better
than random play: a direction of descent at theta-hat^u need not be one at Theta.
"""

import numpy as np
import torch
from torch import Tensor

from engram.bandits.networks import Weights, forward, gradients, outer_parts
from engram.bandits.replay import ReplayBuffer, kept_rows, of_each
from engram.bandits.stacks import Stack
from engram.bandits.training import penalized
from engram.core.arrays import Array, Bools, Ints


def at_users(
    lasts: Stack, rows: ReplayBuffer, runs: Ints, weights: Array, uniforms: Array, lam: Tensor
) -> Weights:
    """Returns the mean over users, by weights w_u, of gradients of (5) at theta-hat^u.

    In (5) the L1 term has no weights; here each user's whole loss is weighted, the L1 term
    included.

    Args:
        lasts: theta-hat, shapes (R, U, out, in).
        rows: Users' rows.
        runs: Run of each group, shape (M,).
        weights: w_u of each group's users, 0 for others, shape (M, U).
        uniforms: Uniform numbers in [0, 1), shape (R, J, n), which draw J n rows of each user.
        lam: lambda, shape (R,).

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
    the first j of the group's n rows. So this sums over a random prefix of 0 to n - 1 rows.

    Args:
        lasts: theta-hat, shapes (R, U, out, in).
        rows: Users' rows, ordered by user and by place in the buffer (by time, until old rows are
            overwritten).
        runs: Run of each group, shape (M,).
        members: Members of each group, shape (M, U).
        uniforms: Uniform numbers in [0, 1), shape (M,), which draw the length of the prefix.

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
    return tuple(
        torch.stack(
            [
                ((delta[run] * mask[:, None]) @ below[run].mT).sum(dim=0)
                for run, mask in zip(runs, masks, strict=True)
            ]
        )
        for delta, below in reversed(parts)
    )
