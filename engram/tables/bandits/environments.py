"""Environments of bandit tasks: simulated (Section 4.1), or read from a table (J.2).

They are drawn beforehand, with the reward of every arm, so that policies can be compared in the
same environment. A task's environment depends on the task's own generator alone.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from engram.core.arrays import Array, Bools, Ints
from engram.core.checks import require
from engram.tables.simulation import sparse_parameters
from engram.tables.site import Rows

BanditModel = Literal["C", "P"]


class TaskEnvironment(NamedTuple):
    """The rounds of one task.

    Attributes:
        active: Whether the task is activated in each round, shape (T,); n rounds are.
        contexts: Contexts in these rounds, shape (n, K, d) under Model-C, (n, 1, d) under Model-P.
        means: Expected reward of each arm, by which regret is counted, shape (n, K).
        rewards: Reward that each arm would pay, shape (n, K). A policy sees only that of the arm it
            plays.
    """

    active: Bools
    contexts: Array
    means: Array
    rewards: Array

    @property
    def parameters(self) -> int:
        """Number of parameters: 1, or K if arms share a context."""
        return int(self.means.shape[1] // self.contexts.shape[1])

    def rounds(self, start: int, stop: int) -> "TaskEnvironment":
        """Returns the rounds t with ``start < t <= stop``, where the first is t = 1."""
        seen = slice(*(int(np.count_nonzero(self.active[:t])) for t in (start, stop)))
        return TaskEnvironment(
            self.active[start:stop], self.contexts[seen], self.means[seen], self.rewards[seen]
        )


def regret(environment: TaskEnvironment, actions: Ints) -> Array:
    """Returns the regret of each round (Sections 3.2 and I.1), shape (T,).

    It is the loss in expected reward against the best arm, so never negative; 0 in rounds in which
    the task is not activated.
    """
    chosen = np.take_along_axis(environment.means, actions[:, None], axis=1)[:, 0]
    lost = np.zeros(len(environment.active))
    lost[environment.active] = environment.means.max(axis=1) - chosen
    return lost


def simulate(
    rng: np.random.Generator,
    coefs: Array,
    *,
    arms: int,
    activation: float,
    horizon: int,
    sigma: float,
) -> TaskEnvironment:
    """Draws one task's rounds: contexts from N(0, I), rewards with noise from N(0, sigma^2).

    ``coefs`` are the true parameters, shape (1, d) for Model-C, (K, d) for Model-P; K and T are
    ``arms`` and ``horizon``, 1 or more, and p_m is ``activation``, in [0, 1]. All arms of a round
    share its noise, of ``sigma`` >= 0.
    """
    require(len(coefs) in (1, arms), "coefs.shape", coefs.shape, f"(1, d) or ({arms}, d)")
    require(sigma >= 0, "sigma", sigma, "at least 0")
    active = _activated(rng, activation, horizon)
    n = int(active.sum())
    contexts = rng.normal(size=(n, arms if len(coefs) == 1 else 1, coefs.shape[1]))
    means = (contexts * coefs).sum(axis=2)
    noise = rng.normal(scale=sigma, size=(n, 1))
    return TaskEnvironment(active, contexts, means, means + noise)


def replay(
    rng: np.random.Generator,
    rows: Rows,
    reference: Array,
    *,
    activation: float,
    horizon: int,
    arms: int = 2,
) -> TaskEnvironment:
    """Draws one task's rounds from a table, under Model-C: the protocol of PISA in J.2.

    In each round in which it is activated, the task draws ``arms`` of its rows without replacement;
    these are the arms, and the target of the row chosen is the reward. When fewer rows are left,
    the task is no longer activated.

    Args:
        rng: The task's own generator.
        rows: The task's rows; weights are ignored.
        reference: Parameters that stand for the true ones, shape (d,), such as least squares on
            held-out rows. Regret is counted by the rewards that they predict.
        activation: p_m, in [0, 1]. In the paper it is proportional to the task's size, apparently
            with 1 for the largest task.
        horizon: T.
        arms: K.
    """
    require(arms >= 1, "arms", arms, "at least 1")
    active = _activated(rng, activation, horizon)
    n = min(int(active.sum()), len(rows.y) // arms)
    active &= np.cumsum(active) <= n
    order = rng.permutation(len(rows.y))[: n * arms].reshape(n, arms)
    contexts = rows.x[order]
    return TaskEnvironment(active, contexts, contexts @ reference, rows.y[order])


def sparse_environments(
    rng: np.random.Generator,
    model: BanditModel,
    *,
    activation: Sequence[float] | Array,
    horizon: int,
    dim: int = 30,
    differing: int = 2,
    arms: int = 3,
    sigma: float = 0.5,
) -> list[TaskEnvironment]:
    """Draws Section 4.1's simulation: parameters of tasks differ in few coordinates.

    Parameters come from ``rng``, each task's rounds from a generator spawned from it. In model
    ``P`` each arm has such parameters. ``activation`` has each task's p_m, shape (M,), uniform on
    [0, 1] in the paper; T, d, s, K are ``horizon``, ``dim``, ``differing`` and ``arms``.
    """
    require(model in ("C", "P"), "model", model, "C or P")
    tasks = len(activation)
    sets = 1 if model == "C" else arms
    each = np.stack([sparse_parameters(rng, tasks, dim, differing) for _ in range(sets)], axis=1)
    return [
        simulate(child, coefs, arms=arms, activation=p, horizon=horizon, sigma=sigma)
        for child, coefs, p in zip(rng.spawn(tasks), each, activation, strict=True)
    ]


def _activated(rng: np.random.Generator, activation: float, horizon: int) -> Bools:
    require(0 <= activation <= 1, "activation", activation, "in [0, 1]")
    require(horizon >= 1, "horizon", horizon, "at least 1")
    return rng.random(horizon) < activation
