"""Meta-Ban: collaborative neural bandits (Algorithms 1 to 4).

Ban, Qi, Wei, He. Neural Collaborative Filtering Bandits via Meta Learning. 2022. Each user has a
network theta^u, which says whom it agrees with on an arm; the meta-learner's, Theta, adapts to
those who agree, and plays.

Where the paper has sums of losses, these are means, over rows and over users: so a step size does
not depend on how many there are.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engram.bandits.meta_gradients import at_users, of_prefixes
from engram.bandits.networks import (
    Weights,
    descend,
    difference_norms,
    forward,
    gradient_norms,
    initial,
)
from engram.bandits.policy import Array, Runs
from engram.bandits.replay import Replay, add, empty, with_users
from engram.bandits.stacks import Stack, of_users, put, room_for, stacked, with_room
from engram.bandits.training import per_run, trained
from engram.checks import require

__all__ = ["Groups", "MetaBan", "MetaBanState", "meta_ban"]

Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]
Rngs = Sequence[np.random.Generator]
Exploration = Literal["gradient-norm", "paper"]
Theta = Literal["last", "draw"]
MetaGradient = Literal["adapt", "eq6", "alg4"]
Start = Literal["own", "meta", "initial"]


class MetaBanState(NamedTuple):
    """What R runs have learned, with room for U users.

    Attributes:
        start: Theta_0, shapes (R, out, in).
        meta: Theta_t.
        thetas: theta^u, by which groups are inferred, shapes (R, U, out, in).
        lasts: theta-hat^u, users' last parameters; the same object unless theta^u is drawn.
        rows: What users were shown.
        known: Shape (R,), how many users have come; their numbers are below.
        rounds: How often arms were chosen.
    """

    start: Weights
    meta: Weights
    thetas: Stack
    lasts: Stack
    rows: Replay
    known: Ints
    rounds: int


class Groups(NamedTuple):
    """Relative groups, equal ones once: M of them, of all runs.

    Attributes:
        runs: Of each group the run, shape (M,).
        members: Shape (M, U).
        of_arms: Of each arm the group, shape (R, K).
    """

    runs: Ints
    members: Bools
    of_arms: Ints


class MetaBan(NamedTuple):
    """Algorithm 1 in R runs, which may differ in seeds and step sizes; see ``meta_ban``.

    Attributes:
        dim: d.
        hidden: Widths of hidden layers.
        alpha: Shape (R,), as what follows.
        threshold: (nu - 1) / nu gamma.
        lam: lambda.
        eta_user: eta_1.
        eta_meta: eta_2.
    """

    dim: int
    hidden: tuple[int, ...]
    alpha: Tensor
    threshold: Tensor
    lam: Tensor
    eta_user: Tensor
    eta_meta: Tensor
    exploration: Exploration
    theta: Theta
    meta_gradient: MetaGradient
    adapt_every: int
    group_cap: int | None
    own_weight: float
    user_start: Start
    user_steps: int
    meta_steps: int
    batch: int
    buffer: int

    @property
    def runs(self) -> Runs[MetaBanState]:
        """This as a policy."""
        return Runs(self.init, self.choose, self.update)

    def init(self, rngs: Rngs) -> MetaBanState:
        """Draws Theta_0, which all networks start from."""
        drawn = [initial(rng, self.dim, self.hidden) for rng in rngs]
        start = tuple(torch.stack(layer) for layer in zip(*drawn, strict=True))
        rows = empty(len(rngs), self.dim, self.buffer)
        thetas = stacked(start, rows.seen.shape[1])
        lasts = thetas if self.theta == "last" else stacked(start, rows.seen.shape[1])
        # Line 3, a row of each user before the first round, is left out: users come at any time.
        return MetaBanState(start, start, thetas, lasts, rows, np.zeros(len(rngs), dtype=int), 0)

    def choose(
        self, state: MetaBanState, users: Ints, arms: Array, rngs: Rngs
    ) -> tuple[Ints, MetaBanState]:
        """Plays the arm with the largest f(x; Theta_t,i) + alpha UCB_t,i (8)."""
        state = _welcomed(state, users)
        x = torch.from_numpy(arms).float().mT
        groups = self.groups(state, users, x)
        runs = torch.from_numpy(groups.runs)
        metas = tuple(w[runs] for w in state.meta)
        if state.rounds % self.adapt_every == 0:
            metas = self._adapted(state, users, groups, metas, rngs)
        scores = self._scores(state, metas, runs, x[runs])
        of_arms = torch.from_numpy(groups.of_arms)
        chosen = scores[of_arms, torch.arange(arms.shape[1])].argmax(dim=1)
        played = of_arms[torch.arange(len(users)), chosen]
        meta = tuple(w[played] for w in metas)  # line 13
        return chosen.numpy(), state._replace(meta=meta, rounds=state.rounds + 1)

    def update(
        self, state: MetaBanState, users: Ints, x: Array, rewards: Array, rngs: Rngs
    ) -> MetaBanState:
        """Remembers the row, and trains the user's network: Algorithm 3."""
        state = _welcomed(state, users)
        rows = add(state.rows, users, x, rewards)
        if self.user_start == "own":  # which Algorithm 3 has not, and which learns faster
            theta = of_users(state.lasts, users)
        else:
            theta = state.meta if self.user_start == "meta" else state.start
        own = np.arange(rows.seen.shape[1]) == users[:, None]
        lots = self._lots(rngs, self.user_steps)
        none = torch.zeros_like(self.lam)
        runs = np.arange(len(users))
        theta = trained(theta, rows, runs, own.astype(float), lots, self.eta_user, none)
        lasts = put(state.lasts, users, theta)
        return state._replace(
            rows=rows, lasts=lasts, thetas=self._inferring(state, rows, lasts, users, rngs)
        )

    def groups(self, state: MetaBanState, users: Ints, x: Tensor) -> Groups:
        """Infers whom users agree with (4), among those who have come, and these.

        Args:
            state: Before, or after they have come.
            users: Shape (R,).
            x: Arms as columns, shape (R, d, K).
        """
        state = _welcomed(state, users)
        opinions = _opinions(state.thetas, x)
        runs = np.arange(len(users))
        gaps = (opinions - opinions[runs, users][:, None]).abs()
        known = torch.from_numpy(np.arange(gaps.shape[1]) < state.known[:, None])
        gaps = torch.where(known[..., None], gaps, torch.inf)
        members = gaps <= self.threshold[:, None, None]
        if self.group_cap is not None and self.group_cap < gaps.shape[1]:
            gaps[runs, users] = -1.0  # it is the first of its own group
            ranks = gaps.argsort(dim=1, stable=True).argsort(dim=1)
            members &= ranks < self.group_cap
        return _distinct(members.mT.numpy())

    def _adapted(
        self, state: MetaBanState, users: Ints, groups: Groups, metas: Weights, rngs: Rngs
    ) -> Weights:
        """Adapts Theta_t-1 to each group: Algorithm 2, or 4, or descent at Theta itself."""
        runs = torch.from_numpy(groups.runs)
        own = np.arange(groups.members.shape[1]) == users[groups.runs][:, None]
        weights = np.where(groups.members, np.where(own, self.own_weight, 1.0), 0.0)
        eta, lam = self.eta_meta[runs], self.lam[runs]
        if self.meta_gradient == "alg4":
            lots = np.array([rng.random() for rng in rngs])[groups.runs]
            slopes = of_prefixes(state.lasts, state.rows, groups.runs, groups.members, lots)
            return descend(metas, slopes, eta)
        lots = self._lots(rngs, self.meta_steps)
        if self.meta_gradient == "adapt":
            lots = lots[groups.runs]
            return trained(metas, state.rows, groups.runs, weights, lots, eta, lam)
        slopes = at_users(state.lasts, state.rows, groups.runs, weights, lots, self.lam)
        return descend(metas, slopes, eta * self.meta_steps)

    def _scores(self, state: MetaBanState, metas: Weights, runs: Tensor, x: Tensor) -> Tensor:
        """Returns f + alpha UCB of arms of each group's run, (M, K), from x (M, d, K).

        Of the paper's UCB, Z_1 and the user's term c / sqrt(mu^u) are the same for all arms of a
        round, and so left out.
        """
        outputs, seen = forward(metas, x)
        if self.exploration == "gradient-norm":
            width = gradient_norms(metas, seen)
        else:
            start = tuple(w[runs] for w in state.start)
            width = difference_norms(metas, seen, start, forward(start, x)[1])
        return outputs + self.alpha[runs][:, None] * width

    def _inferring(
        self, state: MetaBanState, rows: Replay, lasts: Stack, users: Ints, rngs: Rngs
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
        pairs = zip(of_users(lasts, users), of_users(state.thetas, users), strict=True)
        keep = torch.from_numpy(taken)[:, None, None]
        return put(state.thetas, users, tuple(torch.where(keep, new, old) for new, old in pairs))

    def _lots(self, rngs: Rngs, steps: int) -> Array:
        return np.stack([rng.random((steps, self.batch)) for rng in rngs])


def meta_ban(
    dim: int,
    *,
    runs: int = 1,
    hidden: Sequence[int] = (100,),
    alpha: float | Array = 0.01,
    nu: float | Array = 5.0,
    gamma: float | Array = 0.4,
    lam: float | Array = 0.0,
    eta_user: float | Array = 1.0,
    eta_meta: float | Array = 1.0,
    exploration: Exploration = "gradient-norm",
    theta: Theta = "last",
    meta_gradient: MetaGradient = "adapt",
    adapt_every: int = 1,
    group_cap: int | None = None,
    own_weight: float = 1.0,
    user_start: Start = "own",
    user_steps: int = 3,
    meta_steps: int = 1,
    batch: int = 32,
    buffer: int = 256,
) -> MetaBan:
    """Builds Meta-Ban. Numbers that may be arrays have shape (R,), one for each run.

    The defaults are what did well where it was tried. The paper's algorithm to the letter is
    ``exploration="paper"``, ``theta="draw"``, ``meta_gradient="eq6"``, ``user_start="meta"``.

    Args:
        dim: Features d of an arm, at least 1; arms are best of norm 1.
        runs: R, at least 1.
        hidden: Widths of the hidden layers; the paper's is one of 100.
        alpha: Exploration, >= 0, times ``exploration``.
        nu: > 1: the larger, the larger groups are.
        gamma: The gap between groups, in [0, 1): users agree on an arm if their networks differ
            by at most (nu - 1) / nu gamma (4).
        lam: lambda >= 0, of the L1 norm in the meta-learner's loss (5).
        eta_user: Step size eta_1 of users' networks, > 0.
        eta_meta: Step size eta_2 of the meta-learner, > 0; of one row's step where
            ``meta_gradient`` is ``alg4``.
        exploration: What a large score may come from beside a large prediction: ``gradient-norm``,
            ||g(x; Theta)||, or ``paper``, ||g(x; Theta) - g(x; Theta_0)||.
        theta: Which of a user's parameters say whom it agrees with: the ``last``, or one that is
            drawn from all so far, as in Algorithm 3 (``draw``).
        meta_gradient: How Theta adapts to a group: by steps of descent on the rows that its users
            were shown (``adapt``); by their gradients at their own parameters, (6) and Algorithm 2
            (``eq6``), or the same row by row, Algorithm 4 (``alg4``).
        adapt_every: Adapts in one of as many rounds, at least 1.
        group_cap: The most users in a group, nearest first, at least 1; None for no limit.
        own_weight: w_u of the user who is served, > 0; that of others is 1.
        user_start: What a user's network is trained from in each round: its ``own`` parameters, the
            ``meta`` learner's, or the ``initial`` ones.
        user_steps: J_1, at least 1.
        meta_steps: J_2, at least 1.
        batch: Rows of a step, drawn with replacement, at least 1.
        buffer: Last rows that are kept of each user, at least 1.

    Raises:
        ValueError: An argument is not as said.
    """
    positive = {"dim": dim, "runs": runs, "adapt_every": adapt_every, "user_steps": user_steps}
    positive |= {"meta_steps": meta_steps, "batch": batch, "buffer": buffer}
    positive |= {"group_cap": 1 if group_cap is None else group_cap}
    for name, count in positive.items():
        require(count >= 1, name, count, "at least 1")
    require(len(hidden) >= 1 and min(hidden) >= 1, "hidden", tuple(hidden), "one or more widths")
    require(own_weight > 0, "own_weight", own_weight, "above 0")
    chosen = ((exploration, Exploration), (theta, Theta), (meta_gradient, MetaGradient))
    for choice, known in (*chosen, (user_start, Start)):
        require(choice in get_args(known), "a choice", choice, f"one of {get_args(known)}")
    wide = per_run(runs, nu=nu, gamma=gamma)
    require(wide["nu"] > 1, "nu", nu, "above 1")
    require((wide["gamma"] >= 0) & (wide["gamma"] < 1), "gamma", gamma, "in [0, 1)")
    threshold = (wide["nu"] - 1) / wide["nu"] * wide["gamma"]
    sizes = per_run(runs, alpha=alpha, lam=lam, eta_user=eta_user, eta_meta=eta_meta)
    for name, size in sizes.items():
        require((size >= 0) & size.isfinite(), name, size.tolist(), "finite and at least 0")
    return MetaBan(
        dim=dim,
        hidden=tuple(hidden),
        threshold=threshold,
        exploration=exploration,
        theta=theta,
        meta_gradient=meta_gradient,
        adapt_every=adapt_every,
        group_cap=group_cap,
        own_weight=own_weight,
        user_start=user_start,
        user_steps=user_steps,
        meta_steps=meta_steps,
        batch=batch,
        buffer=buffer,
        **sizes,
    )


def _welcomed(state: MetaBanState, users: Ints) -> MetaBanState:
    """Returns the state with these users among those that have come."""
    room = state.rows.seen.shape[1]
    needed = room_for(room, users)
    if needed > room:
        thetas = with_room(state.thetas, state.start, needed)
        same = state.lasts is state.thetas
        lasts = thetas if same else with_room(state.lasts, state.start, needed)
        rows = with_users(state.rows, needed)
        state = state._replace(thetas=thetas, lasts=lasts, rows=rows)
    return state._replace(known=np.maximum(state.known, users + 1))


def _opinions(thetas: Stack, x: Tensor) -> Tensor:
    """Returns f(x_i; theta^u) of all users and arms, (R, U, K)."""
    first, *rest = (stack.read() for stack in thetas)
    layer = (first.flatten(1, 2) @ x).reshape(*first.shape[:3], -1)  # all users' as one product
    for w in rest:
        layer = w @ torch.relu(layer)
    return layer.squeeze(2)


def _distinct(members: Bools) -> Groups:
    """Finds equal groups among those of arms, (R, K, U), of the same run."""
    runs, arms, _ = members.shape
    packed = np.packbits(members, axis=2)
    numbers: dict[tuple[int, bytes], int] = {}
    keys = ((run, packed[run, arm].tobytes()) for run in range(runs) for arm in range(arms))
    of_arms = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
    firsts = np.unique(of_arms, return_index=True)[1]
    flat = members.reshape(runs * arms, -1)
    return Groups(firsts // arms, flat[firsts], of_arms.reshape(runs, arms))
