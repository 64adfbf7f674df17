"""Collaborative bandits (Section 7 of the Meta-Ban paper): all policies in the same worlds.

All get about as many tuning trials, of at most ``TUNED_ROUNDS`` rounds, in worlds of other seeds
than the reported ones. (The paper reports the best of its grid, which favors larger grids by chance
alone.)
"""

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from engram.bandits.meta_ban import MetaBan, MetaBanState
from engram.bandits.play import RoundContext, play_policy
from engram.bandits.policy import BatchedPolicy
from engram.bandits.studies.environments import EnvironmentSpec, draw_environment
from engram.bandits.studies.methods import (
    META_BAN,
    METHODS,
    PolicyArguments,
    meta_bans,
    runs_at_once,
)
from engram.bandits.studies.settings import MetaBanSettings
from engram.core.arrays import Array, Bools, Ints
from engram.simulations.job_pool import Job, Pool, Progress, Row
from engram.studies.summaries import grouped

_ABLATIONS: Final = {"nu": ((1.1, 2.0, 5.0, 10.0), {"gamma": 0.4})}
"""By argument of Meta-Ban: the values of Figure 4, and the arguments that are fixed."""

_TUNING: Final = (1000, 1001)  # seeds; reported ones count from 0
TUNED_ROUNDS: Final = 2000  # most rounds of a trial of tuning
POINTS: Final = 100  # of a curve


class Recovery(NamedTuple):
    """Agreement of inferred relative groups with the true ones (Lemma 6.4)."""

    exact: Bools  # whether each inferred group equals the true one
    precision: Array  # share of its users who belong to the true group
    recall: Array  # share of the true group's users who are in it


RECOVERY: Final = Recovery._fields


def true_groups(expected_rewards: Array, user: int) -> Bools:
    """Marks the users who expect the same of each arm as a user (Definition 3.1), (K, users).

    Args:
        expected_rewards: Expected rewards, shape (K, users). For the users whom run r of
            ``play_policy`` has seen in round t, numbered as the run numbers them, it is
            ``environment.expected_rewards(t)[:, context.came[r]]``.
        user: The user, a column of ``expected_rewards``.
    """
    return np.asarray(expected_rewards == expected_rewards[:, user, None])


def group_recovery(inferred: Bools, true: Bools) -> Recovery:
    """Compares inferred groups with the true ones; results have shape (...).

    Args:
        inferred: Members of each group among the users seen, shape (..., users). An empty group has
            precision 1.
        true: The true members, in the same shape; at least the user whose group it is.
    """
    both, found = (inferred & true).sum(axis=-1), inferred.sum(axis=-1)
    precision = np.where(found > 0, both / np.maximum(found, 1), 1.0)
    return Recovery((inferred == true).all(axis=-1), precision, both / true.sum(axis=-1))


class TrialRows(NamedTuple):
    """Rows of trials, as ``run_trial`` returns them."""

    done: list[Row]  # all methods' rows, each with its best setting
    ablated: list[Row]  # Meta-Ban's rows by values of an argument; none without an ablation


def work(s: MetaBanSettings, pool: Pool) -> TrialRows:
    """Tunes all methods, and plays each with its best setting in other worlds.

    Raises:
        Refused: The world's data cannot be read, or are not what they should be.
    """
    columns, seeds = tuple(s.columns.split(",")), range(s.seeds)
    spec = EnvironmentSpec(s.world, s.sources, columns, str(s.data_dir.absolute()))
    first = draw_environment(spec, s.rounds, 0)

    def trials(
        title: str,
        name: str,
        grid: Sequence[PolicyArguments],
        seeds: Sequence[int],
        watched: bool,
        rounds: int = s.rounds,
    ) -> dict[str, Job]:
        """Returns jobs for all settings with all seeds, each with as many runs as fit in memory."""
        runs = [(setting, seed) for setting in grid for seed in seeds]
        size = runs_at_once(name, first)
        parts = [tuple(runs[start : start + size]) for start in range(0, len(runs), size)]
        watched = watched and name == META_BAN
        return {
            title if len(parts) == 1 else f"{title}-{i + 1}": functools.partial(
                run_trial, spec, rounds, name, part, watched
            )
            for i, part in enumerate(parts)
        }

    tuning, final, ablation = dict[str, Job](), dict[str, Job](), dict[str, Job]()
    for name in s.methods:
        if len(grid := METHODS[name].grid) > 1:
            rounds = min(s.rounds, TUNED_ROUNDS)
            tuning |= trials(f"tune-{name}", name, grid, _TUNING, False, rounds)
    chosen = choose(pool.run(tuning))
    if s.ablation:
        values, fixed = _ABLATIONS[s.ablation]
        grid = tuple({**chosen[META_BAN], **fixed, s.ablation: value} for value in values)
        ablation = trials(f"ablation-{s.ablation}", META_BAN, grid, seeds, True)
    ablated = pool.run(ablation)
    for name in s.methods:
        final |= trials(name, name, [chosen.get(name, METHODS[name].grid[0])], seeds, True)
    return TrialRows(pool.run(final), ablated)


def at_shares(horizon: int, shares: Sequence[int]) -> Ints:
    """Returns the last rounds of shares of T, in %."""
    return -(-np.array(shares) * horizon // POINTS)


def choose(rows: Iterable[Row]) -> dict[str, PolicyArguments]:
    """Returns each method's setting with the least regret in the trials of tuning."""
    regrets: dict[str, dict[Any, float]] = {}
    for (method, setting), runs in grouped(rows, "method", "setting").items():
        total = sum(run["errors"][-1] for run in runs)
        regrets.setdefault(method, {})[setting] = total
    return {name: dict(min(tried, key=tried.__getitem__)) for name, tried in regrets.items()}


def run_trial(
    spec: EnvironmentSpec,
    horizon: int,
    method: str,
    runs: Sequence[tuple[PolicyArguments, int]],
    watched: bool,
    report: Progress,
) -> list[Row]:
    """Plays several runs of a method at once.

    Each run has a setting, and a seed of its world and policy. If ``watched``, inferred groups are
    compared with the true ones, where these are known.

    Returns:
        A row for each run: ``method``, ``setting``, ``seed``, ``rounds``; ``errors``, the regret
        after each of these; ``ms``, a run's share of the policy's core time in a round; and, if
        groups are known and watched, each of ``RECOVERY``, the mean over arms and over the rounds
        since the previous point.
    """
    settings, seeds = zip(*runs, strict=True)
    drawn = {seed: draw_environment(spec, horizon, seed) for seed in set(seeds)}
    worlds = [drawn[seed] for seed in seeds]
    policy, spent = _timed(METHODS[method].make(worlds[0].dim, settings))
    rewards = [each.expected_rewards for each in worlds if each.expected_rewards is not None]
    watched = watched and len(rewards) == len(worlds)
    recovered = _recovered(meta_bans(worlds[0].dim, settings), rewards) if watched else None
    recovery = np.zeros((len(RECOVERY), len(seeds), horizon))

    def watch(context: RoundContext[Any]) -> None:
        if context.t % max(1, horizon // POINTS) == 0:
            report(context.t, horizon)
        if recovered is not None:
            recovery[:, :, context.t] = recovered(context)

    played = play_policy(policy, worlds, seeds, watch)
    report(horizon, horizon)
    rounds = np.unique(at_shares(horizon, range(1, POINTS + 1)))
    starts = np.r_[0, rounds[:-1]]
    between = np.add.reduceat(recovery, starts, axis=2) / np.diff(np.r_[starts, horizon])
    return [
        {
            "method": method,
            "setting": dict(setting),
            "seed": seed,
            "rounds": rounds.tolist(),
            "errors": played.regrets[i, rounds - 1].tolist(),
            "ms": 1e3 * spent() / horizon / len(seeds),
        }
        | ({name: between[j, i].tolist() for j, name in enumerate(RECOVERY)} if watched else {})
        for i, (setting, seed) in enumerate(runs)
    ]


def _timed(runs: BatchedPolicy[Any]) -> tuple[BatchedPolicy[Any], Callable[[], float]]:
    """Returns the policy, and a function that returns the core seconds it has taken so far."""
    total = 0.0

    def clocked(step: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            nonlocal total
            begun = time.thread_time()
            found = step(*arguments)
            total += time.thread_time() - begun
            return found

        return timed

    return BatchedPolicy(runs.init, clocked(runs.choose), clocked(runs.update)), lambda: total


def _recovered(
    policy: MetaBan, rewards: Sequence[Callable[[int], Array]]
) -> Callable[[RoundContext[MetaBanState]], Array]:
    """Returns a function that measures ``RECOVERY`` in a round: means over arms, shape (3, R)."""

    def recovered(context: RoundContext[MetaBanState]) -> Array:
        pairs = list(zip(context.rounds, context.came, strict=True))
        users = np.array([came.index(offer.user) for offer, came in pairs])
        x = torch.from_numpy(np.stack([offer.arms for offer, _ in pairs])).float().mT
        groups = policy.groups(context.state, users, x)
        found = []
        for run, (_, came) in enumerate(pairs):
            inferred = groups.members[groups.of_arms[run], : len(came)]
            expected = rewards[run](context.t)[:, list(came)]
            found.append(group_recovery(inferred, true_groups(expected, int(users[run]))))
        return np.array([[part.mean() for part in each] for each in found]).T

    return recovered
