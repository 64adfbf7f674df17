"""Plays a policy in several runs at once, each in its own environment or in a shared one."""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from engram.bandits.environments.environment import Environment, Round
from engram.bandits.policy import CHOOSE, INIT, UPDATE, BatchedPolicy, generator
from engram.core.arrays import Array, Ints
from engram.core.checks import require
from engram.core.process_modes import own_modes

S = TypeVar("S")


class RoundContext(NamedTuple, Generic[S]):
    """The context of round t, before the runs choose.

    Attributes:
        t: The round, from 0.
        rounds: The round of each run's environment.
        came: For each run, the environment's users in order of arrival, this round's included. The
            policy knows a user by the place in this order.
        state: The policy's state.
    """

    t: int
    rounds: tuple[Round, ...]
    came: tuple[tuple[int, ...], ...]
    state: S


class PlayedRuns(NamedTuple):
    """The outcome of R runs of T rounds.

    Attributes:
        regrets: Cumulative regret R_t of (2), in expected rewards, shape (R, T).
        arms: The arms chosen, shape (R, T).
        rewards: Their rewards, shape (R, T).
    """

    regrets: Array
    arms: Ints
    rewards: Array


@own_modes()
def play_policy(
    runs: BatchedPolicy[S],
    environments: Sequence[Environment],
    seeds: Sequence[int],
    watch: Callable[[RoundContext[S]], None] = lambda moment: None,
) -> PlayedRuns:
    """Plays all rounds.

    Users are numbered in order of arrival, and generators are those of ``policy.generator``. So a
    run makes the choices of a ``PolicyServer`` with the run's seed that serves the same users.

    Args:
        runs: A policy in R runs.
        environments: The environment of each run, all with the same T, K and d. An object given to
            several runs makes its rounds once.
        seeds: Seed of each run's policy.
        watch: Called in each round: to record what is inferred, to show progress, or to stop by
            raising an error.
    """
    many, expected = len(environments), f"as many as seeds, {len(seeds)}"
    require(many == len(seeds) >= 1, "environments", many, expected)
    shapes = {(each.horizon, each.arms, each.dim) for each in environments}
    alike = "the same in all environments"
    require(len(shapes) == 1, "rounds, arms and features", sorted(shapes), alike)
    horizon = environments[0].horizon
    distinct = {id(environment): environment for environment in environments}
    came: dict[int, tuple[int, ...]] = dict.fromkeys(distinct, ())
    regrets, rewards = np.empty((2, len(environments), horizon))
    arms = np.empty((len(environments), horizon), dtype=np.intp)
    state = runs.init([generator(seed, 0, INIT) for seed in seeds])
    for t in range(horizon):
        made = {key: environment.round(t) for key, environment in distinct.items()}
        for key, each in made.items():
            if each.user not in came[key]:
                came[key] = (*came[key], each.user)
        numbers = {key: came[key].index(each.user) for key, each in made.items()}
        now = tuple(made[id(environment)] for environment in environments)
        seen = tuple(came[id(environment)] for environment in environments)
        watch(RoundContext(t, now, seen, state))
        users = np.array([numbers[id(environment)] for environment in environments])
        offered = np.stack([each.arms for each in now])
        chosen, state = runs.choose(state, users, offered, _generators(seeds, t, CHOOSE))
        x, paid = (
            np.stack([values[arm] for values, arm in zip(part, chosen, strict=True)])
            for part in (offered, [each.rewards for each in now])
        )
        state = runs.update(state, users, x, paid, _generators(seeds, t, UPDATE))
        regrets[:, t] = [r.means.max() - r.means[arm] for r, arm in zip(now, chosen, strict=True)]
        arms[:, t], rewards[:, t] = chosen, paid
    return PlayedRuns(np.cumsum(regrets, axis=1), arms, rewards)


def _generators(seeds: Sequence[int], t: int, purpose: int) -> list[np.random.Generator]:
    return [generator(seed, t, purpose) for seed in seeds]
