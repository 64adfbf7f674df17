"""Plays a policy in several runs at once, each in a world of its own or in the same one."""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from engram.bandits.policy import CHOOSE, INIT, UPDATE, Array, Runs, generator
from engram.bandits.worlds.world import Round, World
from engram.checks import require

__all__ = ["Moment", "Played", "play"]

Numbers = npt.NDArray[np.intp]
S = TypeVar("S")


class Moment(NamedTuple, Generic[S]):
    """What there is in round t, before the runs choose.

    Attributes:
        t: From 0.
        rounds: What each run is offered.
        came: The users of each run's world in the order in which they came, this round's included:
            the policy has their places here for numbers.
        state: Of all runs.
    """

    t: int
    rounds: tuple[Round, ...]
    came: tuple[tuple[int, ...], ...]
    state: S


class Played(NamedTuple):
    """What came of R runs of T rounds.

    Attributes:
        regrets: R_t of (2), cumulative, in expected rewards: shape (R, T).
        arms: What was chosen, shape (R, T).
        rewards: And what it paid, shape (R, T).
    """

    regrets: Array
    arms: Numbers
    rewards: Array


def play(
    runs: Runs[S],
    worlds: Sequence[World],
    seeds: Sequence[int],
    watch: Callable[[Moment[S]], None] = lambda moment: None,
) -> Played:
    """Plays all rounds.

    Users are numbered as they come, and generators are those of ``policy.generator``: so a run is
    what a ``Policy`` with the run's seed does that serves the world's users in turn.

    Args:
        runs: A policy in R runs.
        worlds: Each run's, with the same T, K and d. If several runs are given the same object, its
            rounds are made once.
        seeds: Each run's, of the policy's random numbers.
        watch: Is called in each round; to record what is inferred, to show how far it is, or to
            stop by raising.
    """
    require(
        len(worlds) == len(seeds) >= 1, "worlds", len(worlds), f"as many as seeds, {len(seeds)}"
    )
    shapes = {(world.horizon, world.arms, world.dim) for world in worlds}
    require(len(shapes) == 1, "rounds, arms and features", sorted(shapes), "the same in all worlds")
    horizon = worlds[0].horizon
    distinct = {id(world): world for world in worlds}
    came: dict[int, tuple[int, ...]] = dict.fromkeys(distinct, ())
    regrets, rewards = np.empty((2, len(worlds), horizon))
    arms = np.empty((len(worlds), horizon), dtype=np.intp)
    state = runs.init([generator(seed, 0, INIT) for seed in seeds])
    for t in range(horizon):
        made = {key: world.round(t) for key, world in distinct.items()}
        for key, each in made.items():
            if each.user not in came[key]:
                came[key] = (*came[key], each.user)
        numbers = {key: came[key].index(each.user) for key, each in made.items()}
        now = tuple(made[id(world)] for world in worlds)
        seen = tuple(came[id(world)] for world in worlds)
        watch(Moment(t, now, seen, state))
        users = np.array([numbers[id(world)] for world in worlds])
        offered = np.stack([each.arms for each in now])
        chosen, state = runs.choose(state, users, offered, _generators(seeds, t, CHOOSE))
        x, paid = (
            np.stack([values[arm] for values, arm in zip(part, chosen, strict=True)])
            for part in (offered, [each.rewards for each in now])
        )
        state = runs.update(state, users, x, paid, _generators(seeds, t, UPDATE))
        regrets[:, t] = [
            each.means.max() - each.means[arm] for each, arm in zip(now, chosen, strict=True)
        ]
        arms[:, t], rewards[:, t] = chosen, paid
    return Played(np.cumsum(regrets, axis=1), arms, rewards)


def _generators(seeds: Sequence[int], t: int, purpose: int) -> list[np.random.Generator]:
    return [generator(seed, t, purpose) for seed in seeds]
