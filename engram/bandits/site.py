"""The site's side of Meta-Ban: users' rows and networks, and Algorithm 3.

This is the only part of Meta-Ban that reads rows and users' networks. So users may be at several
sites that keep both to themselves; the meta-learner (``engram.bandits.meta_learner``) only needs
their predictions and gradients.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from engram.bandits import versioned_tensor as stacks
from engram.bandits.networks import Weights, gradients
from engram.bandits.replay import (
    Drawn,
    ReplayBuffer,
    Rngs,
    add,
    drawn_rows,
    empty,
    uniforms,
    with_rows,
    with_users,
)
from engram.bandits.training import trained_alone
from engram.bandits.versioned_tensor import Persistent, Stack
from engram.core.arrays import Array, Ints
from engram.core.checks import require

Theta = Literal["last", "draw"]
Start = Literal["own", "meta"]


class UserSiteState(NamedTuple):
    """State of a site's users in R runs, with capacity for U users."""

    start: Weights  # theta_0, from which all networks start, shapes (R, out, in)
    thetas: Stack  # theta^u, from which groups are inferred, shapes (R, U, out, in)
    # theta-hat^u, users' last parameters; the same object as ``thetas`` unless theta^u is drawn.
    lasts: Stack
    rows: ReplayBuffer  # users' replay buffers


class UserSite(NamedTuple):
    """The functions of a site; see ``engram.bandits.meta_ban.meta_ban``."""

    eta: Tensor  # step size eta_1, shape (R,)
    theta: Theta  # which parameters groups are inferred from
    user_start: Start  # the parameters from which a user's network is trained in each round
    steps: int  # gradient steps J_1
    batch: int  # rows per step
    buffer: int  # size of each user's replay buffer

    def init(self, start: Weights) -> UserSiteState:
        """Returns the state before any user has arrived."""
        first = start[0]
        rows = empty(len(first), first.shape[-1], self.buffer, first.dtype)
        thetas = stacks.initial_stack(start, rows.seen.shape[1])
        lasts = thetas if self.theta == "last" else stacks.initial_stack(start, rows.seen.shape[1])
        return UserSiteState(start, thetas, lasts, rows)

    def welcome(self, state: UserSiteState, users: Ints) -> UserSiteState:
        """Extends the capacity so that these users, (R,), have a place."""
        capacity = state.rows.seen.shape[1]
        needed = stacks.capacity_for(capacity, users)
        if needed == capacity:
            return state
        thetas = stacks.with_capacity(state.thetas, state.start, needed)
        same = state.lasts is state.thetas
        lasts = thetas if same else stacks.with_capacity(state.lasts, state.start, needed)
        rows = with_users(state.rows, needed)
        return state._replace(thetas=thetas, lasts=lasts, rows=rows)

    def predictions(self, state: UserSiteState, x: Tensor) -> Tensor:
        """Returns f(x_i; theta^u) for all users, (R, U, K), from arms as columns, (R, d, K)."""
        first, *rest = (stack.read() for stack in state.thetas)
        layer = (first.flatten(1, 2) @ x).reshape(*first.shape[:3], -1)  # all users' as one product
        for w in rest:
            layer = w @ torch.relu(layer)
        return layer.squeeze(2)

    def gradients(self, state: UserSiteState, weights: Weights, drawn: Drawn) -> Weights:
        """Returns gradients of 1/2 sum_j shares_j (f(x_j; Theta) - r_j)^2 over the rows drawn.

        They are those of M networks Theta, shapes (M, out, in).
        """
        return gradients(weights, *drawn_rows(state.rows, drawn))

    def learn(
        self, state: UserSiteState, users: Ints, x: Array, rewards: Array, meta: Weights, rngs: Rngs
    ) -> UserSiteState:
        """Stores a row and trains the user's network: Algorithm 3.

        In each run, a user, for whom there is capacity, has played an arm: (R,), (R, d), with a
        reward, (R,). Theta_t, (R, out, in), is read if ``user_start`` is ``meta``.
        """
        rows = add(state.rows, users, x, rewards)
        # Algorithm 3 has no "own", which learns faster.
        theta = meta if self.user_start == "meta" else stacks.gather(state.lasts, users)
        own = (np.arange(rows.seen.shape[1]) == users[:, None]).astype(float)
        drawn = uniforms(rngs, self.steps, self.batch)
        theta = trained_alone(rows, theta, own, self.eta, drawn)
        lasts = stacks.scatter(state.lasts, users, theta)
        thetas = self._inferring(state.thetas, rows, lasts, users, rngs)
        return state._replace(rows=rows, lasts=lasts, thetas=thetas)

    def _inferring(
        self, thetas: Stack, rows: ReplayBuffer, lasts: Stack, users: Ints, rngs: Rngs
    ) -> Stack:
        """Returns theta_t^u: the last parameters, or one of all so far.

        Algorithm 3 draws from {theta-hat_0, ..., theta-hat_mu} anew each time. To replace the one
        before by the last with probability 1 / (mu + 1) gives each theta_t^u the same
        distribution, and needs no memory of all.
        """
        if self.theta == "last":
            return lasts
        mu = rows.seen[np.arange(len(users)), users]
        taken = np.array([rng.random() for rng in rngs]) < 1 / (mu + 1)
        pairs = zip(stacks.gather(lasts, users), stacks.gather(thetas, users), strict=True)
        keep = torch.from_numpy(taken)[:, None, None]
        chosen = tuple(torch.where(keep, new, old) for new, old in pairs)
        return stacks.scatter(thetas, users, chosen)


def remembered(state: UserSiteState, users: Sequence[int]) -> dict[str, Tensor]:
    """Returns copies of everything that a single run's site stores about n users, in order.

    These are ``theta.k`` and, if theta^u is drawn, ``last.k`` of each layer (n, out, in); ``x``
    (n, B, d), ``rewards`` (n, B) and ``seen`` (n,).
    """
    chosen = list(users)
    found = {name: kept.read()[0, chosen] for name, kept in _parts(state).items()}
    return found | {"seen": torch.from_numpy(state.rows.seen[0, chosen])}


def recalled(
    state: UserSiteState, users: Sequence[int], memory: Mapping[str, Tensor]
) -> UserSiteState:
    """Restores the users' ``remembered`` tensors; the state must have capacity for them.

    Raises:
        ValueError: If it is of other networks, or has more rows than are kept.
    """
    names = {*_parts(state), "seen"}
    require(memory.keys() == names, "the memory's parts", sorted(memory), str(sorted(names)))
    rows, capacity = memory["rewards"].shape[1], state.rows.rewards.read().shape[2]
    require(rows <= state.rows.limit, "a user's rows", rows, f"at most {state.rows.limit}")
    if rows > capacity:
        state = state._replace(rows=with_rows(state.rows, rows))
    more = max(capacity - rows, 0)  # of rows that nobody has seen
    x, rewards = pad(memory["x"], (0, 0, 0, more)), pad(memory["rewards"], (0, more))
    memory = {**memory, "x": x, "rewards": rewards}
    parts, seen = _parts(state), state.rows.seen.copy()
    shapes = {name: (len(users), *kept.read().shape[2:]) for name, kept in parts.items()}
    found = {name: tuple(memory[name].shape) for name in parts}
    require(found == shapes, "the memory's shapes", found, str(shapes))
    chosen = torch.tensor(list(users))
    parts = {name: kept.write((0, chosen), memory[name]) for name, kept in parts.items()}
    seen[0, chosen.numpy()] = memory["seen"].numpy()
    layers = range(len(state.start))
    thetas = tuple(parts[f"theta.{k}"] for k in layers)
    same = state.lasts is state.thetas
    lasts = thetas if same else tuple(parts[f"last.{k}"] for k in layers)
    kept_now = state.rows._replace(x=parts["x"], rewards=parts["rewards"], seen=seen)
    return UserSiteState(state.start, thetas, lasts, kept_now)


def _parts(state: UserSiteState) -> dict[str, Persistent]:
    parts = {f"theta.{k}": layer for k, layer in enumerate(state.thetas)}
    if state.lasts is not state.thetas:
        parts |= {f"last.{k}": layer for k, layer in enumerate(state.lasts)}
    return parts | {"x": state.rows.x, "rewards": state.rows.rewards}
