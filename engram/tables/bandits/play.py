"""Plays a policy in the environments of several tasks, batch by batch."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from engram.core.arrays import Array
from engram.core.checks import require
from engram.tables.bandits.environments import TaskEnvironment, regret
from engram.tables.bandits.policies import MultitaskBandit


class Batch(NamedTuple):
    """Rounds t with ``start < t <= stop`` in which estimates do not change."""

    start: int  # 0, or the last round of the previous batch
    stop: int  # its last round
    full: bool  # whether estimates follow: not if the horizon has cut the batch short


def batches(first: int, horizon: int) -> Iterator[Batch]:
    """Yields H_0 and H_q = {t: 2^(q-1) H_0 < t <= min(2^q H_0, T)} of Algorithms 2 and 5."""
    require(first >= 1, "first", first, "at least 1")
    require(horizon >= 1, "horizon", horizon, "at least 1")
    start, stop = 0, first
    while start < horizon:
        yield Batch(start, min(stop, horizon), stop <= horizon)
        start, stop = stop, 2 * stop


def play_tasks(
    policy: MultitaskBandit[Any, Any],
    environments: Sequence[TaskEnvironment],
    rngs: Sequence[np.random.Generator],
    *,
    first: int = 1,
) -> Array:
    """Returns the cumulative regret of each task after each round, shape (M, T).

    Each of M environments has T rounds, and a generator to break ties. The first batch has
    ``first`` rounds, H_0; 1 in the paper.
    """
    horizons = {len(environment.active) for environment in environments}
    require(len(horizons) == 1, "numbers of rounds", horizons, "the same for all tasks")
    state = policy.init(
        len(environments), environments[0].parameters, environments[0].contexts.shape[2]
    )
    lost: list[Array] = []
    for batch in batches(first, horizons.pop()):
        now = [environment.rounds(batch.start, batch.stop) for environment in environments]
        contexts = [environment.contexts for environment in now]
        actions = policy.choose(state, contexts, rngs)
        rewards = [
            environment.rewards[np.arange(len(arms)), arms]
            for environment, arms in zip(now, actions, strict=True)
        ]
        state = policy.update(state, contexts, actions, rewards)
        if batch.full:
            state = policy.close_batch(state)
        lost.append(np.stack([regret(*task) for task in zip(now, actions, strict=True)]))
    return np.cumsum(np.hstack(lost), axis=1)
