"""Collaborative bandits (Section 7 of the Meta-Ban paper): all policies in the same worlds.

Each is tuned by as many trials, in worlds of other seeds than those that are reported. (The paper
reports the best of its grid, which is better by chance alone, the more so the larger the grid.)
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from threadpoolctl import threadpool_limits

from engram.bandits.environments.environment import Environment
from engram.bandits.meta_ban import MetaBan, MetaBanState
from engram.bandits.play import RoundContext, play_policy
from engram.bandits.policy import BatchedPolicy
from engram.bandits.recovery import group_recovery, true_groups
from federation.errors import Refused
from simulations.reproduce.jobs import Report
from simulations.reproduce.meta_ban_methods import (
    META_BAN,
    METHODS,
    Setting,
    meta_bans,
    runs_at_once,
)
from simulations.reproduce.meta_ban_worlds import Place, check_place, world
from simulations.reproduce.report import Row

__all__ = [
    "ABLATIONS",
    "RECOVERY",
    "MetaBanPlan",
    "Trial",
    "ablation_trials",
    "check",
    "choose",
    "final_trials",
    "run_trial",
    "tuning_trials",
]

Array = npt.NDArray[np.float64]

ABLATIONS: Final = {"nu": ((1.1, 2.0, 5.0, 10.0), {"gamma": 0.4})}
"""By argument of Meta-Ban: the values of Figure 4, and what is fixed meanwhile."""

RECOVERY: Final = ("exact", "precision", "recall")

_TUNING: Final = (1000, 1001)  # seeds; those that are reported count from 0
_POINTS: Final = 100  # of a curve


@dataclass(frozen=True)
class MetaBanPlan:
    """The settings of a reproduction.

    Attributes:
        experiment: ``meta-ban``.
        world: As ``Place`` has it, and so are the next three.
        sources: Data sets or a table.
        columns: Of the table.
        data_dir: A folder.
        methods: Names of ``METHODS``, each once.
        rounds: T.
        seeds: How many worlds are reported.
        ablation: A name of ``ABLATIONS``; empty for none.
    """

    experiment: str
    world: str
    sources: tuple[str, ...]
    columns: tuple[str, ...]
    data_dir: str
    methods: tuple[str, ...]
    rounds: int
    seeds: int
    ablation: str

    def __post_init__(self) -> None:
        """Refuses what cannot be.

        Raises:
            Refused: In one line.
        """
        check_place(self.place)
        for name in self.methods:
            if name not in METHODS:
                raise Refused(f"method must be one of {', '.join(METHODS)}, got {name!r}")
        if len(set(self.methods)) < len(self.methods):
            raise Refused(f"methods must be named once each, got {', '.join(self.methods)}")
        for field, most in (("rounds", 10**9), ("seeds", _TUNING[0])):
            if not 1 <= (value := getattr(self, field)) <= most:
                raise Refused(f"{field} must be in [1, {most}], got {value}")
        if self.ablation not in ("", *ABLATIONS):
            raise Refused(f"ablation must be {' or '.join(ABLATIONS)}, got {self.ablation!r}")
        if self.ablation and META_BAN not in self.methods:
            raise Refused(f"an ablation is of {META_BAN}, which is not among the methods")

    @property
    def place(self) -> Place:
        """Where it is played."""
        return Place(self.world, self.sources, self.columns, self.data_dir)


class Trial(NamedTuple):
    """A method in some runs at once.

    Attributes:
        place: Where.
        rounds: T.
        method: Name of ``METHODS``.
        runs: Of each the setting, and the seed of the world and of the policy.
        watched: Whether inferred groups are set beside the true ones.
    """

    place: Place
    rounds: int
    method: str
    runs: tuple[tuple[Setting, int], ...]
    watched: bool = False


def check(plan: MetaBanPlan) -> Environment:
    """Returns the first world of a plan.

    Raises:
        Refused: Its data cannot be read, or are not what they should be.
    """
    return world(plan.place, plan.rounds, 0)


def tuning_trials(plan: MetaBanPlan, drawn: Environment) -> dict[str, Trial]:
    """Returns the trials of all settings among which there is a choice, by name."""
    found: dict[str, Trial] = {}
    for name in plan.methods:
        if len(grid := METHODS[name].grid) > 1:
            found |= _trials(plan, drawn, f"tune-{name}", name, grid, _TUNING)
    return found


def choose(rows: Iterable[Row]) -> dict[str, Setting]:
    """Returns each method's setting with the least regret, of those in some trials."""
    regrets: dict[str, dict[tuple[tuple[str, object], ...], float]] = {}
    for row in rows:
        tried, setting = regrets.setdefault(row["method"], {}), tuple(row["setting"].items())
        tried[setting] = tried.get(setting, 0.0) + row["errors"][-1]
    least = {name: min(tried.items(), key=lambda each: each[1]) for name, tried in regrets.items()}
    return {name: dict(setting) for name, (setting, _) in least.items()}


def final_trials(
    plan: MetaBanPlan, drawn: Environment, settings: Mapping[str, Setting]
) -> dict[str, Trial]:
    """Returns the trials that tables are made of, by name."""
    found: dict[str, Trial] = {}
    for name in plan.methods:
        known = [settings.get(name, METHODS[name].grid[0])]
        found |= _trials(plan, drawn, name, name, known, range(plan.seeds), watched=True)
    return found


def ablation_trials(
    plan: MetaBanPlan, drawn: Environment, settings: Mapping[str, Setting]
) -> dict[str, Trial]:
    """Returns the trials of Figure 4, by name."""
    if not plan.ablation:
        return {}
    values, fixed = ABLATIONS[plan.ablation]
    grid = [{**settings[META_BAN], **fixed, plan.ablation: value} for value in values]
    seeds = range(plan.seeds)
    return _trials(plan, drawn, f"ablation-{plan.ablation}", META_BAN, grid, seeds, watched=True)


def _trials(
    plan: MetaBanPlan,
    drawn: Environment,
    title: str,
    name: str,
    grid: Sequence[Setting],
    seeds: Sequence[int],
    *,
    watched: bool = False,
) -> dict[str, Trial]:
    """Returns trials of all settings with all seeds, as many at once as fit the memory."""
    runs = [(setting, seed) for setting in grid for seed in seeds]
    size = runs_at_once(name, drawn)
    parts = [tuple(runs[start : start + size]) for start in range(0, len(runs), size)]
    return {
        title if len(parts) == 1 else f"{title}-{i + 1}": Trial(
            plan.place, plan.rounds, name, part, watched and name == META_BAN
        )
        for i, part in enumerate(parts)
    }


# --- Play ------------------------------------------------------------------------------------


def run_trial(trial: Trial, report: Report) -> list[Row]:
    """Plays the runs of a trial.

    Args:
        trial: Which.
        report: Is told how many rounds are done, and of how many.

    Returns:
        A row for each run: ``method``, ``setting``, ``seed``, ``rounds``; ``errors``, the regret
        after each of these; ``ms``, a run's share of the policy's time of a core in a round; and
        where groups are known and watched each of ``RECOVERY``, the mean over arms and over the
        rounds since the point before.
    """
    with threadpool_limits(1):  # trials run beside each other; threads in each would only wait
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return _run(trial, report)
        finally:
            torch.set_num_threads(threads)


def _run(trial: Trial, report: Report) -> list[Row]:
    settings, seeds = zip(*trial.runs, strict=True)
    drawn = {seed: world(trial.place, trial.rounds, seed) for seed in set(seeds)}
    worlds = [drawn[seed] for seed in seeds]
    runs, spent = _timed(METHODS[trial.method].make(worlds[0].dim, settings))
    expected_rewards = [
        each.expected_rewards for each in worlds if each.expected_rewards is not None
    ]
    watched = trial.watched and len(expected_rewards) == len(worlds)
    recovered = (
        _recovered(meta_bans(worlds[0].dim, settings), expected_rewards) if watched else None
    )
    recovery = np.zeros((len(RECOVERY), len(seeds), trial.rounds))

    def watch(moment: RoundContext[Any]) -> None:
        if moment.t % max(1, trial.rounds // _POINTS) == 0:
            report(moment.t, trial.rounds)
        if recovered is not None:
            recovery[:, :, moment.t] = recovered(moment)

    played = play_policy(runs, worlds, seeds, watch)
    report(trial.rounds, trial.rounds)
    rounds = np.unique(np.linspace(1, trial.rounds, _POINTS).round().astype(int))
    starts = np.r_[0, rounds[:-1]]
    between = np.add.reduceat(recovery, starts, axis=2) / np.diff(np.r_[starts, trial.rounds])
    return [
        {
            "method": trial.method,
            "setting": dict(setting),
            "seed": seed,
            "rounds": rounds.tolist(),
            "errors": played.regrets[i, rounds - 1].tolist(),
            "ms": 1e3 * spent() / trial.rounds / len(seeds),
        }
        | ({name: between[j, i].tolist() for j, name in enumerate(RECOVERY)} if watched else {})
        for i, (setting, seed) in enumerate(trial.runs)
    ]


def _timed(runs: BatchedPolicy[Any]) -> tuple[BatchedPolicy[Any], Callable[[], float]]:
    """Returns a policy, and what tells how many seconds of a core it has taken so far."""
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
    policy: MetaBan, expected_rewards: Sequence[Callable[[int], Array]]
) -> Callable[[RoundContext[MetaBanState]], Array]:
    """Returns what says how right groups are in a round: means over arms, shape (3, R)."""

    def recovered(moment: RoundContext[MetaBanState]) -> Array:
        pairs = list(zip(moment.rounds, moment.came, strict=True))
        users = np.array([came.index(offer.user) for offer, came in pairs])
        x = torch.from_numpy(np.stack([offer.arms for offer, _ in pairs])).float().mT
        groups = policy.groups(moment.state, users, x)
        found = []
        for run, (_, came) in enumerate(pairs):
            inferred = groups.members[groups.of_arms[run], : len(came)]
            expected = expected_rewards[run](moment.t)[:, list(came)]
            found.append(group_recovery(inferred, true_groups(expected, int(users[run]))))
        return np.array([[part.mean() for part in each] for each in found]).T

    return recovered
