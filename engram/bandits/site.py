"""Users and their learners, where their rows are: Algorithm 3, and answers about the networks.

Nothing of Meta-Ban that looks at a row or at a user's network is elsewhere. So users may be at
several sites, which do not show them, and the meta-learner (``engram.bandits.meta_learner``) plays
by the answers.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from engram.bandits.networks import Weights, gradients
from engram.bandits.persistent import Persistent
from engram.bandits.policy import Array
from engram.bandits.replay import (
    Drawn,
    Replay,
    add,
    draw,
    drawn_rows,
    empty,
    kept_rows,
    with_rows,
    with_users,
)
from engram.bandits.stacks import Stack, capacity_for, gather, initial_stack, scatter, with_capacity
from engram.bandits.training import trained
from engram.checks import require

__all__ = ["Rngs", "Site", "SiteState", "Start", "Theta", "lots", "recalled", "remembered"]

Ints = npt.NDArray[np.intp]
Rngs = Sequence[np.random.Generator]
Theta = Literal["last", "draw"]
Start = Literal["own", "meta", "initial"]


class SiteState(NamedTuple):
    """A site's users in R runs, with room for U of them.

    Attributes:
        start: Theta_0, which all networks start from, shapes (R, out, in).
        thetas: theta^u, by which groups are inferred, shapes (R, U, out, in).
        lasts: theta-hat^u, users' last parameters; the same object unless theta^u is drawn.
        rows: What users were shown.
    """

    start: Weights
    thetas: Stack
    lasts: Stack
    rows: Replay


class Site(NamedTuple):
    """What a site does; see ``engram.bandits.meta_ban.meta_ban``.

    Attributes:
        eta: eta_1, shape (R,).
        theta: Which parameters say whom a user agrees with.
        user_start: What its network is trained from in each round.
        steps: J_1.
        batch: Rows of a step.
        buffer: Last rows that are kept of each user.
    """

    eta: Tensor
    theta: Theta
    user_start: Start
    steps: int
    batch: int
    buffer: int

    def init(self, start: Weights) -> SiteState:
        """Returns what there is before anybody has come."""
        first = start[0]
        rows = empty(len(first), first.shape[-1], self.buffer, first.dtype)
        thetas = initial_stack(start, rows.seen.shape[1])
        lasts = thetas if self.theta == "last" else initial_stack(start, rows.seen.shape[1])
        return SiteState(start, thetas, lasts, rows)

    def welcome(self, state: SiteState, users: Ints) -> SiteState:
        """Returns the state with room for these users, (R,)."""
        capacity = state.rows.seen.shape[1]
        needed = capacity_for(capacity, users)
        if needed == capacity:
            return state
        thetas = with_capacity(state.thetas, state.start, needed)
        same = state.lasts is state.thetas
        lasts = thetas if same else with_capacity(state.lasts, state.start, needed)
        rows = with_users(state.rows, needed)
        return state._replace(thetas=thetas, lasts=lasts, rows=rows)

    def predictions(self, state: SiteState, x: Tensor) -> Tensor:
        """Returns f(x_i; theta^u) of all users, (R, U, K), on arms as columns, (R, d, K)."""
        first, *rest = (stack.read() for stack in state.thetas)
        layer = (first.flatten(1, 2) @ x).reshape(*first.shape[:3], -1)  # all users' as one product
        for w in rest:
            layer = w @ torch.relu(layer)
        return layer.squeeze(2)

    def gradients(self, state: SiteState, weights: Weights, drawn: Drawn) -> Weights:
        """Returns gradients of 1/2 sum_j shares_j (f(x_j; Theta) - r_j)^2 over rows of its users.

        Args:
            state: What has the rows.
            weights: Theta of M networks, shapes (M, out, in).
            drawn: Rows for each of them.
        """
        return gradients(weights, *drawn_rows(state.rows, drawn))

    def learn(
        self, state: SiteState, users: Ints, x: Array, rewards: Array, meta: Weights, rngs: Rngs
    ) -> SiteState:
        """Remembers a row, and trains the user's network: Algorithm 3.

        Args:
            state: Which has room for these users.
            users: One in each run, (R,).
            x: What was played, (R, d).
            rewards: What it paid, (R,).
            meta: Theta_t, shapes (R, out, in), for ``user_start`` ``meta``.
            rngs: Each run's.
        """
        rows = add(state.rows, users, x, rewards)
        if self.user_start == "own":  # which Algorithm 3 has not, and which learns faster
            theta = gather(state.lasts, users)
        else:
            theta = meta if self.user_start == "meta" else state.start
        own = np.arange(rows.seen.shape[1]) == users[:, None]
        runs, none = np.arange(len(users)), torch.zeros_like(self.eta)
        drawn = draw(kept_rows(rows), runs, own.astype(float), lots(rngs, self.steps, self.batch))
        theta = trained(rows, theta, drawn, self.eta, none)
        lasts = scatter(state.lasts, users, theta)
        thetas = self._inferring(state.thetas, rows, lasts, users, rngs)
        return state._replace(rows=rows, lasts=lasts, thetas=thetas)

    def _inferring(
        self, thetas: Stack, rows: Replay, lasts: Stack, users: Ints, rngs: Rngs
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
        pairs = zip(gather(lasts, users), gather(thetas, users), strict=True)
        keep = torch.from_numpy(taken)[:, None, None]
        return scatter(thetas, users, tuple(torch.where(keep, new, old) for new, old in pairs))


def lots(rngs: Rngs, steps: int, batch: int) -> Array:
    """Returns what draws the rows of so many steps, shape (R, J, n), uniform on [0, 1)."""
    return np.stack([rng.random((steps, batch)) for rng in rngs])


def remembered(state: SiteState, users: Sequence[int]) -> dict[str, Tensor]:
    """Returns all that a site, of a single run, knows of some users: n of them, in their order.

    Copies: ``theta.k`` and, if theta^u is drawn, ``last.k`` of each layer (n, out, in); ``x``
    (n, B, d), ``rewards`` (n, B) and ``seen`` (n,).
    """
    chosen = list(users)
    found = {name: kept.read()[0, chosen] for name, kept in _parts(state).items()}
    return found | {"seen": torch.from_numpy(state.rows.seen[0, chosen])}


def recalled(state: SiteState, users: Sequence[int], memory: Mapping[str, Tensor]) -> SiteState:
    """Returns the state with what ``remembered`` gave of these users, for whom there is room.

    Raises:
        ValueError: It is of other networks, or of more rows than are kept.
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
    return SiteState(state.start, thetas, lasts, kept_now)


def _parts(state: SiteState) -> dict[str, Persistent]:
    parts = {f"theta.{k}": layer for k, layer in enumerate(state.thetas)}
    if state.lasts is not state.thetas:
        parts |= {f"last.{k}": layer for k, layer in enumerate(state.lasts)}
    return parts | {"x": state.rows.x, "rewards": state.rows.rewards}
