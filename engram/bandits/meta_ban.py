"""Meta-Ban: collaborative neural bandits (Algorithms 1 to 4).

Ban, Qi, Wei, He. Neural Collaborative Filtering Bandits via Meta Learning. 2022. Each user has a
network theta^u; users whose networks agree on an arm form a group. The meta-learner's network Theta
adapts to each group, and chooses the arm. Here all users are at one site.

Where the paper has sums of losses, these are means over rows and over users, so that step sizes do
not depend on the number of rows and users.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from engram.bandits.meta_learner import Exploration, Groups, MetaLearner, MetaState
from engram.bandits.networks import Weights, descend, initial_of_runs
from engram.bandits.policy import BatchedPolicy
from engram.bandits.replay import Rngs, kept_rows, uniforms
from engram.bandits.site import Start, Theta, UserSite, UserSiteState
from engram.bandits.training import (
    at_users,
    check_sizes,
    check_weights,
    of_prefixes,
    per_run,
    trained,
)
from engram.core.arrays import Array, Ints
from engram.core.checks import require
from engram.core.process_modes import own_modes

MetaGradient = Literal["adapt", "eq6", "alg4"]


class MetaBanState(NamedTuple):
    """State of R runs."""

    meta: MetaState  # the meta-learner's state, with Theta_t
    site: UserSiteState  # users' networks and rows
    known: Ints  # number of users seen so far, shape (R,); user numbers are below it


class MetaBan(NamedTuple):
    """Algorithm 1 in R runs, which may differ in seeds and step sizes; see ``meta_ban``."""

    dim: int
    hidden: tuple[int, ...]
    learner: MetaLearner
    site: UserSite
    meta_gradient: MetaGradient
    dtype: torch.dtype

    @property
    def batched(self) -> BatchedPolicy[MetaBanState]:
        """The same as a ``BatchedPolicy``."""
        return BatchedPolicy(self.init, self.choose, self.update)

    def start(self, rngs: Rngs) -> Weights:
        """Draws Theta_0, which all networks start from."""
        return initial_of_runs(rngs, len(self.site.eta), self.dim, self.hidden, self.dtype)

    @own_modes()
    def init(self, rngs: Rngs) -> MetaBanState:
        """Returns the state before the first round."""
        # Line 3, a row of each user before the first round, is left out: users come at any time.
        start, known = self.start(rngs), np.zeros(len(rngs), dtype=int)
        return MetaBanState(MetaState(start, start, 0), self.site.init(start), known)

    @own_modes()
    def choose(
        self, state: MetaBanState, users: Ints, arms: Array, rngs: Rngs
    ) -> tuple[Ints, MetaBanState]:
        """Plays the arm with the largest f(x; Theta_t,i) + alpha UCB_t,i (8)."""
        state = self._welcomed(state, users)
        x = torch.tensor(arms, dtype=self.dtype).mT
        predictions = self._predictions(state, x)
        groups = self.learner.groups(predictions, users)
        adapted = partial(self._adapted, state, users, rngs)
        chosen, meta = self.learner.choose(state.meta, groups, x, adapted, rngs)
        own = predictions[np.arange(len(users)), users].isfinite().all(dim=1).numpy()
        return np.where(own, chosen, -1), state._replace(meta=meta)  # as ``best`` says it

    @own_modes()
    def update(
        self, state: MetaBanState, users: Ints, x: Array, rewards: Array, rngs: Rngs
    ) -> MetaBanState:
        """Stores the row and trains the user's network: Algorithm 3."""
        state = self._welcomed(state, users)
        site = self.site.learn(state.site, users, x, rewards, state.meta.theta, rngs)
        return state._replace(site=site)

    def groups(self, state: MetaBanState, users: Ints, x: Tensor) -> Groups:
        """Infers relative groups (4) among all who have been seen, and users (R,).

        ``x`` has arms as columns, shape (R, d, K).
        """
        return self.learner.groups(self._predictions(self._welcomed(state, users), x), users)

    def _predictions(self, state: MetaBanState, x: Tensor) -> Tensor:
        """Returns users' predictions, (R, U, K); infinite for unseen users."""
        predictions = self.site.predictions(state.site, x)
        known = torch.from_numpy(np.arange(predictions.shape[1]) < state.known[:, None])
        return torch.where(known[..., None], predictions, torch.inf)

    def _adapted(
        self, state: MetaBanState, users: Ints, rngs: Rngs, thetas: Weights, groups: Groups
    ) -> Weights:
        """Adapts Theta_t-1 to each group: Algorithm 2, or 4, or descent at Theta itself."""
        learner, site = self.learner, state.site
        if self.meta_gradient == "adapt":
            descent, counts = partial(trained, site.rows), kept_rows(site.rows)
            return learner.adapted(thetas, groups, users, counts, descent, rngs)
        eta = learner.eta[torch.from_numpy(groups.runs)]
        if self.meta_gradient == "alg4":
            uniform = np.array([rng.random() for rng in rngs])[groups.runs]
            gradient = of_prefixes(site.lasts, site.rows, groups.runs, groups.members, uniform)
            return descend(thetas, gradient, eta)
        drawn = uniforms(rngs, learner.steps, learner.batch)
        weights = learner.weights(groups, users)
        gradient = at_users(site.lasts, site.rows, groups.runs, weights, drawn, learner.lam)
        return descend(thetas, gradient, eta * learner.steps)

    def _welcomed(self, state: MetaBanState, users: Ints) -> MetaBanState:
        site = self.site.welcome(state.site, users)
        return state._replace(site=site, known=np.maximum(state.known, users + 1))


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
    group_cap: int | None = 4,
    own_weight: float = 10.0,
    user_start: Start = "own",
    user_steps: int = 4,
    meta_steps: int = 8,
    batch: int = 16,
    buffer: int = 256,
    dtype: torch.dtype = torch.float32,
) -> MetaBan:
    """Builds Meta-Ban. Numbers that may be arrays have shape (R,), one for each run.

    The defaults did well in our experiments. The paper's algorithm to the letter is
    ``exploration="paper"``, ``theta="draw"``, ``meta_gradient="eq6"``, ``user_start="meta"`` and
    ``group_cap=None``, with ``own_weight=1`` in its experiments.

    Args:
        dim: Features d of an arm, at least 1; arms are best of norm 1.
        runs: R, at least 1.
        hidden: Widths of the hidden layers; the paper has one of 100.
        alpha: Weight of ``exploration``, >= 0.
        nu: > 1, and may be infinite: the larger, the larger groups are.
        gamma: The gap between groups, in [0, 1): users agree on an arm if their networks differ
            by at most (nu - 1) / nu gamma (4).
        lam: lambda >= 0, of the L1 norm in the meta-learner's loss (5). Algorithm 4 has none.
        eta_user: Step size eta_1 of users' networks, > 0.
        eta_meta: Step size eta_2 of the meta-learner, > 0; of one row's step where
            ``meta_gradient`` is ``alg4``.
        exploration: The exploration bonus: ``gradient-norm``, ||g(x; Theta)||, or ``paper``,
            ||g(x; Theta) - g(x; Theta_0)||.
        theta: Which parameters of a user's network groups are inferred from: the ``last``, or ones
            drawn from all so far, as in Algorithm 3 (``draw``).
        meta_gradient: How Theta adapts to a group: by gradient descent on its users' rows
            (``adapt``); by their gradients at their own parameters, (6) and Algorithm 2
            (``eq6``), or the same row by row, Algorithm 4 (``alg4``).
        adapt_every: Theta adapts once in this many rounds, at least 1.
        group_cap: Maximum number of users in a group, at least 1: those whose predictions are
            nearest; None: no limit, as in the paper. (The authors' code draws a fifth of all users
            from a group that is larger.)
        own_weight: Weight w_u of the user who is served, > 0; other users have weight 1. ("Usually,
            we want it to be larger"; the paper's experiments have 1.) Algorithm 4 has none.
        user_start: What a user's network is trained from in each round: its ``own`` parameters, or
            the ``meta`` learner's.
        user_steps: J_1, gradient steps of a user's network in a round, at least 1.
        meta_steps: J_2, gradient steps of the meta-learner in a round, at least 1.
        batch: Rows per step, drawn with replacement, at least 1.
        buffer: Size of each user's replay buffer: the last rows that are kept, at least 1.
        dtype: torch.float32, or torch.float64 to compare two implementations: a difference in
            rounding may change a choice, and with it all later rounds.

    Raises:
        ValueError: If an argument is out of range.
    """
    counts = {"dim": dim, "runs": runs, "adapt_every": adapt_every, "user_steps": user_steps}
    counts |= {"meta_steps": meta_steps, "batch": batch, "buffer": buffer}
    check_sizes(hidden, counts | {"group_cap": 1 if group_cap is None else group_cap})
    finite = bool(np.isfinite(own_weight))
    require(finite and own_weight > 0, "own_weight", own_weight, "finite and above 0")
    require(dtype in (torch.float32, torch.float64), "dtype", dtype, "float32 or float64")
    chosen = ((exploration, Exploration), (theta, Theta), (meta_gradient, MetaGradient))
    for choice, known in (*chosen, (user_start, Start)):
        require(choice in get_args(known), "a choice", choice, f"one of {get_args(known)}")
    wide = per_run(runs, dtype, nu=nu, gamma=gamma)
    require(wide["nu"] > 1, "nu", nu, "above 1")
    require((wide["gamma"] >= 0) & (wide["gamma"] < 1), "gamma", gamma, "in [0, 1)")
    threshold = (1 - 1 / wide["nu"]) * wide["gamma"]
    sizes = per_run(runs, dtype, alpha=alpha, lam=lam, eta_user=eta_user, eta_meta=eta_meta)
    check_weights(sizes, "eta_user", "eta_meta")
    learner = MetaLearner(
        alpha=sizes["alpha"],
        threshold=threshold,
        lam=sizes["lam"],
        eta=sizes["eta_meta"],
        exploration=exploration,
        adapt_every=adapt_every,
        group_cap=group_cap,
        own_weight=own_weight,
        steps=meta_steps,
        batch=batch,
    )
    site = UserSite(sizes["eta_user"], theta, user_start, user_steps, batch, buffer)
    return MetaBan(dim, tuple(hidden), learner, site, meta_gradient, dtype)
