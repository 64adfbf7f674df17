"""MOLARB for users who arrive one at a time, so that it can be compared with the other policies.

It wraps ``engram.tables.bandits``: each user is a task.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from engram.bandits.policy import Policy
from engram.core.arrays import Array
from engram.core.checks import require
from engram.tables.bandits.policies import close_tasks, molar_bandit
from engram.tables.bandits.site import History, TaskState
from engram.tables.shrinkage import Option


class Molar(NamedTuple):
    """The state."""

    users: Mapping[int, TaskState]  # state of each user seen so far, by number
    rounds: int  # number of rewards so far, of all users
    close: int  # number of rewards at which the batch ends


def molar(
    dim: int,
    *,
    c: float = 1.0,
    option: Option = "hard",
    history: History = "batch",
    c_rows: float = 1.0,
    first: int = 1,
) -> Policy[Molar]:
    """MOLARB under Model-C, greedy in batches that double: the arms are the K contexts.

    The first batch ends after ``first`` rounds of all users together, and each later one after
    twice as many rounds. A user who then has too few rows keeps them for a later batch. A user who
    has not yet taken part in a finished batch has coefficients of 0, and plays at random.

    Args:
        dim: d, at least 1.
        c: Scale of the threshold, >= 0; see ``molar_bandit``, also for what follows.
        option: Hard or soft thresholding.
        history: Whether rows are forgotten after a batch.
        c_rows: Number of rows that suffice for an estimate, in units of d.
        first: Size of the first batch, at least 1.
    """
    require(dim >= 1, "dim", dim, "at least 1")
    require(first >= 1, "first", first, "at least 1")
    bandit = molar_bandit(c=c, option=option, history=history, c_rows=c_rows)
    unseen = bandit.init(1, dim)

    def choose(state: Molar, user: int, arms: Array, rng: np.random.Generator) -> tuple[int, Molar]:
        chosen = bandit.choose(state.users.get(user, unseen), arms[None], rng)
        return int(chosen[0]), state

    def update(state: Molar, user: int, x: Array, reward: float, _: np.random.Generator) -> Molar:
        task = state.users.get(user, unseen)
        row = (x[None, None], np.zeros(1, dtype=np.intp), np.array([reward]))
        users = {**state.users, user: bandit.observe(task, *row)}
        rounds, close = state.rounds + 1, state.close
        if rounds == close:
            tasks = close_tasks(bandit, tuple(users.values()))
            users, close = dict(zip(users, tasks, strict=True)), 2 * close
        return Molar(users, rounds, close)

    return Policy(lambda rng: Molar({}, 0, first), choose, update)
