"""Neural UCB and neural Thompson sampling, with one network for all users or one for each.

Zhou, Li, Gu. Neural Contextual Bandits with UCB-based Exploration. ICML 2020.
Zhang, Zhou, Li, Gu. Neural Thompson Sampling. ICLR 2021.

    s(x)^2 = g(x; theta)' Z^-1 g(x; theta) / m,    Z = lam I + sum_t g_t g_t' / m

Here g_t is the gradient at the arm played, and m is the width of the last hidden layer. Only the
diagonal of Z is kept, as in the experiments of both papers. Thompson sampling has the variance
lam g' Z^-1 g / m; here the factor lam is part of alpha. Networks are trained as Meta-Ban's are, by
gradient descent from their current parameters, without the papers' penalty
m lam |theta - theta_0|^2 / 2.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engram.bandits import versioned_tensor as stacks
from engram.bandits.networks import Weights, f_parts, forward, initial_of_runs
from engram.bandits.policy import BatchedPolicy, best_of_each
from engram.bandits.replay import ReplayBuffer, Rngs, add, empty, uniforms, with_users
from engram.bandits.training import check_sizes, check_weights, per_run, trained_alone
from engram.bandits.versioned_tensor import Stack
from engram.core.arrays import Array, Ints
from engram.core.process_modes import own_modes


class NeuralState(NamedTuple):
    """State of R runs, with U networks, or one for all users."""

    start: Weights  # theta_0, shapes (R, out, in)
    thetas: Stack  # current parameters, shapes (R, U, out, in)
    squares: Stack  # diagonals of Z minus lam, in the shapes of ``thetas``
    rows: ReplayBuffer  # users' replay buffers


class NeuralBandit(NamedTuple):
    """Either policy in R runs; see ``neural_bandit``. alpha, lam and eta have shape (R,)."""

    dim: int
    hidden: tuple[int, ...]
    alpha: Tensor
    lam: Tensor
    eta: Tensor
    shared: bool
    thompson: bool
    steps: int
    batch: int
    buffer: int

    @property
    def batched(self) -> BatchedPolicy[NeuralState]:
        """The same as a ``BatchedPolicy``."""
        return BatchedPolicy(self.init, self.choose, self.update)

    @own_modes()
    def init(self, rngs: Rngs) -> NeuralState:
        """Draws theta_0, which all networks of a run start from."""
        start = initial_of_runs(rngs, len(self.eta), self.dim, self.hidden)
        rows = empty(len(rngs), self.dim, self.buffer)
        networks = 1 if self.shared else rows.seen.shape[1]
        none = tuple(torch.zeros_like(w) for w in start)
        thetas, squares = (stacks.initial_stack(w, networks) for w in (start, none))
        return NeuralState(start, thetas, squares, rows)

    @own_modes()
    def choose(
        self, state: NeuralState, users: Ints, arms: Array, rngs: Rngs
    ) -> tuple[Ints, NeuralState]:
        """Plays the arm with the largest f + alpha s, or f + alpha s z with z from N(0, 1)."""
        state = self._welcomed(state, users)
        own = self._networks(users)
        theta = stacks.gather(state.thetas, own)
        outputs, seen = forward(theta, torch.tensor(arms, dtype=torch.float32).mT)
        squares = torch.zeros_like(outputs)
        diagonals = reversed(stacks.gather(state.squares, own))
        for (delta, below), square in zip(f_parts(theta, seen), diagonals, strict=True):
            inverse = 1 / (self.lam[:, None, None] + square)
            squares += ((inverse @ below.square()) * delta.square()).sum(dim=1)
        width = self.alpha[:, None] * (squares / self.hidden[-1]).sqrt()
        if self.thompson:
            normals = np.stack([rng.normal(size=arms.shape[1]) for rng in rngs])
            width = width * torch.from_numpy(normals)
        return best_of_each(outputs + width, rngs), state

    @own_modes()
    def update(
        self, state: NeuralState, users: Ints, x: Array, rewards: Array, rngs: Rngs
    ) -> NeuralState:
        """Adds the row's gradient to Z and the row to the user's buffer, and trains the network."""
        state = self._welcomed(state, users)
        own = self._networks(users)
        theta = stacks.gather(state.thetas, own)
        _, seen = forward(theta, torch.tensor(x, dtype=torch.float32)[..., None])
        parts, squares = reversed(f_parts(theta, seen)), stacks.gather(state.squares, own)
        added = tuple(
            square + delta.square() @ below.square().mT / self.hidden[-1]
            for (delta, below), square in zip(parts, squares, strict=True)
        )
        rows = add(state.rows, users, x, rewards)
        whose = np.ones(rows.seen.shape, dtype=np.float64)
        if not self.shared:
            whose *= np.arange(rows.seen.shape[1]) == users[:, None]
        drawn = uniforms(rngs, self.steps, self.batch)
        theta = trained_alone(rows, theta, whose, self.eta, drawn)
        return state._replace(
            thetas=stacks.scatter(state.thetas, own, theta),
            squares=stacks.scatter(state.squares, own, added),
            rows=rows,
        )

    def _networks(self, users: Ints) -> Ints:
        return np.zeros_like(users) if self.shared else users

    def _welcomed(self, state: NeuralState, users: Ints) -> NeuralState:
        capacity = state.rows.seen.shape[1]
        needed = stacks.capacity_for(capacity, users)
        if needed == capacity:
            return state
        state = state._replace(rows=with_users(state.rows, needed))
        if self.shared:
            return state
        none = tuple(torch.zeros_like(w) for w in state.start)
        return state._replace(
            thetas=stacks.with_capacity(state.thetas, state.start, needed),
            squares=stacks.with_capacity(state.squares, none, needed),
        )


def neural_bandit(
    dim: int,
    *,
    runs: int = 1,
    hidden: Sequence[int] = (100,),
    alpha: float | Array = 0.1,
    lam: float | Array = 0.1,
    eta: float | Array = 1.0,
    shared: bool = True,
    thompson: bool = False,
    steps: int = 12,
    batch: int = 16,
    buffer: int = 256,
) -> NeuralBandit:
    """Builds neural UCB or neural Thompson sampling; array arguments have one number per run, (R,).

    Args:
        dim: Features d of an arm, at least 1.
        runs: R, at least 1.
        hidden: Widths of the hidden layers.
        alpha: Weight of exploration, >= 0.
        lam: Regularization of Z, > 0.
        eta: Step size, > 0.
        shared: Whether there is one network for all users (ONE) or one for each (IND).
        thompson: Whether scores are drawn (Thompson sampling) or upper bounds (UCB).
        steps: Gradient steps per round, at least 1.
        batch: Rows per step, at least 1.
        buffer: Size of each user's replay buffer, at least 1.

    Raises:
        ValueError: If an argument is out of range.
    """
    counts = {"dim": dim, "runs": runs, "steps": steps, "batch": batch, "buffer": buffer}
    check_sizes(hidden, counts)
    sizes = per_run(runs, alpha=alpha, lam=lam, eta=eta)
    check_weights(sizes, "lam", "eta")
    tensors = sizes["alpha"], sizes["lam"], sizes["eta"]
    return NeuralBandit(dim, tuple(hidden), *tensors, shared, thompson, steps, batch, buffer)
