"""The meta-learner of Meta-Ban, which never sees a row.

In round t it asks the sites what users' networks predict for the arms, and infers relative groups
by (4). It then adapts Theta to each group by J_2 steps. For these it draws rows by number, and asks
for the gradient of the loss on them; all it knows of a row is which user it belongs to.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engram.bandits.networks import Weights, difference_norms, forward, gradient_norms
from engram.bandits.policy import best_of_each
from engram.bandits.replay import Drawn, Rngs, draw, uniforms
from engram.core.arrays import Array, Bools, Ints

Exploration = Literal["gradient-norm", "paper"]
DescentSteps = Callable[[Weights, Drawn, Tensor, Tensor], Weights]
"""``(weights, drawn, eta, lam) -> weights``: M networks after J gradient steps on the rows drawn.
``training.trained`` does it where the rows are, ``training.descended`` by gradients asked for."""


class MetaState(NamedTuple):
    """State of the meta-learner in R runs."""

    start: Weights  # theta_0, shapes (R, out, in)
    theta: Weights  # theta_t, in the same shapes
    rounds: int  # number of rounds in which an arm was chosen


class Groups(NamedTuple):
    """The M distinct relative groups of all runs."""

    runs: Ints  # run of each group, shape (M,)
    members: Bools  # which users are in each group, shape (M, U)
    of_arms: Ints  # group of each arm, shape (R, K)


class MetaLearner(NamedTuple):
    """Settings of the meta-learner; see ``engram.bandits.meta_ban.meta_ban``."""

    alpha: Tensor  # weight of exploration, shape (R,), like the next three
    threshold: Tensor  # (nu - 1) / nu gamma
    lam: Tensor  # lambda
    eta: Tensor  # step size eta_2
    exploration: Exploration  # the exploration bonus
    adapt_every: int  # theta adapts once in this many rounds
    group_cap: int | None  # maximum number of users in a group; None: no limit
    own_weight: float  # weight w_u of the user who is served
    steps: int  # gradient steps J_2
    batch: int  # rows per step

    def groups(self, predictions: Tensor, users: Ints) -> Groups:
        """Infers relative groups (4).

        Args:
            predictions: Predictions of users' networks, (R, U, K); infinite for users who have not
                been seen, who thus are in no group.
            users: The user served in each run, shape (R,).
        """
        runs = np.arange(len(users))
        gaps = (predictions - predictions[runs, users][:, None]).abs()
        members = gaps <= self.threshold[:, None, None]
        if self.group_cap is not None and self.group_cap < gaps.shape[1]:
            gaps[runs, users] = -1.0  # it is the first of its own group
            ranks = gaps.argsort(dim=1, stable=True).argsort(dim=1)
            members &= ranks < self.group_cap
        return _distinct(members.mT.numpy())

    def choose(
        self,
        state: MetaState,
        groups: Groups,
        x: Tensor,
        adapted: Callable[[Weights, Groups], Weights],
        rngs: Rngs,
    ) -> tuple[Ints, MetaState]:
        """Chooses the arm with the largest f(x; Theta_t,i) + alpha UCB_t,i (8).

        Arms are columns of ``x``, (R, d, K); ``adapted`` maps Theta_t-1 of each group to Theta_t,i.
        """
        runs = torch.from_numpy(groups.runs)
        thetas = tuple(w.index_select(0, runs) for w in state.theta)  # quicker than by brackets
        if state.rounds % self.adapt_every == 0:
            thetas = adapted(thetas, groups)
        scores = self._scores(state.start, thetas, runs, x[runs])
        of_arms = torch.from_numpy(groups.of_arms)
        chosen = best_of_each(scores[of_arms, torch.arange(x.shape[2])], rngs)
        played = groups.of_arms[np.arange(len(x)), chosen]
        theta = tuple(w[played] for w in thetas)  # line 13
        return chosen, state._replace(theta=theta, rounds=state.rounds + 1)

    def weights(self, groups: Groups, users: Ints) -> Array:
        """Returns w_u in each group, shape (M, U); 0 for users outside it."""
        own = np.arange(groups.members.shape[1]) == users[groups.runs][:, None]
        return np.where(groups.members, np.where(own, self.own_weight, 1.0), 0.0)

    def adapted(
        self,
        thetas: Weights,
        groups: Groups,
        users: Ints,
        counts: Ints,
        descent: DescentSteps,
        rngs: Rngs,
    ) -> Weights:
        """Adapts Theta_t-1 of each group, (M, out, in), by descent on its users' rows.

        In each run a user is served, (R,), and each user has a number of rows, ``counts`` (R, U).
        """
        runs, weights = groups.runs, self.weights(groups, users)
        drawn = draw(counts[runs], runs, weights, uniforms(rngs, self.steps, self.batch)[runs])
        each = torch.from_numpy(runs)
        return descent(thetas, drawn, self.eta[each], self.lam[each])

    def _scores(self, start: Weights, thetas: Weights, runs: Tensor, x: Tensor) -> Tensor:
        """Returns f + alpha UCB of the arms of each group's run, (M, K), from x (M, d, K).

        The terms Z_1 and c / sqrt(mu^u) of the paper's UCB are the same for all arms of a round,
        and are left out.
        """
        outputs, seen = forward(thetas, x)
        if self.exploration == "gradient-norm":
            width = gradient_norms(thetas, seen)
        else:
            first = tuple(w[runs] for w in start)
            width = difference_norms(thetas, seen, first, forward(first, x)[1])
        return outputs + self.alpha[runs][:, None] * width


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
