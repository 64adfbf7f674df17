"""Collaborative bandits (Section 7 of the Meta-Ban paper): all policies in the same worlds.

Each is tuned by as many trials, in worlds of other seeds than those that are reported. (The paper
reports the best of its grid, which is better by chance alone, the more so the larger the grid.)
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engram.bandits.meta_ban import MetaBan, MetaBanState
from engram.bandits.play import Moment, play
from engram.bandits.policy import Runs
from engram.bandits.recovery import group_recovery, true_groups
from simulations.studies.meta_ban.methods import (
    META_BAN,
    METHODS,
    Setting,
    meta_bans,
    runs_at_once,
)
from simulations.studies.meta_ban.settings import MetaBanSettings
from simulations.studies.meta_ban.worlds import Place, world
from simulations.studies.pool import Report, Row
from simulations.studies.summaries import grouped

__all__ = ["RECOVERY", "Jobs", "Trial", "choose", "run_trial"]

Array = npt.NDArray[np.float64]

_ABLATIONS: Final = {"nu": ((1.1, 2.0, 5.0, 10.0), {"gamma": 0.4})}
"""By argument of Meta-Ban: the values of Figure 4, and what is fixed meanwhile."""

RECOVERY: Final = ("exact", "precision", "recall")

_TUNING: Final = (1000, 1001)  # seeds; those that are reported count from 0
_POINTS: Final = 100  # of a curve


class Trial(NamedTuple):
    """A method in some runs at once.

    Attributes:
        place: Where.
        rounds: T.
        method: Name of ``METHODS``.
        runs: Of each the setting, and the seed of the world and of the policy.
        watched: Whether inferred groups are compared with the true ones, where these are known.
    """

    place: Place
    rounds: int
    method: str
    runs: tuple[tuple[Setting, int], ...]
    watched: bool = False


class Jobs:
    """The trials that follow from a study's settings."""

    def __init__(self, settings: MetaBanSettings) -> None:
        """Draws the first world.

        Raises:
            Refused: Its data cannot be read, or are not what they should be.
        """
        s = self._settings = settings
        columns = tuple(s.columns.split(","))
        self._place = Place(s.world, s.sources, columns, str(s.data_dir.absolute()))
        self._first = world(self._place, s.rounds, 0)

    def tuning(self) -> dict[str, Trial]:
        """Returns the trials of all settings of methods that have a choice, by name."""
        found: dict[str, Trial] = {}
        for name in self._settings.methods:
            if len(grid := METHODS[name].grid) > 1:
                found |= self._trials(f"tune-{name}", name, grid, _TUNING)
        return found

    def final(self, settings: Mapping[str, Setting]) -> dict[str, Trial]:
        """Returns the trials that tables are made of, by name, for each method's setting."""
        found: dict[str, Trial] = {}
        for name in self._settings.methods:
            chosen = [settings.get(name, METHODS[name].grid[0])]
            found |= self._trials(name, name, chosen, range(self._settings.seeds), watched=True)
        return found

    def ablation(self, settings: Mapping[str, Setting]) -> dict[str, Trial]:
        """Returns the trials of Figure 4, by name; none if no ablation is wanted."""
        if not (name := self._settings.ablation):
            return {}
        values, fixed = _ABLATIONS[name]
        grid = [{**settings[META_BAN], **fixed, name: value} for value in values]
        seeds = range(self._settings.seeds)
        return self._trials(f"ablation-{name}", META_BAN, grid, seeds, watched=True)

    def _trials(
        self,
        title: str,
        name: str,
        grid: Sequence[Setting],
        seeds: Sequence[int],
        *,
        watched: bool = False,
    ) -> dict[str, Trial]:
        """Returns trials of all settings with all seeds, as many at once as fit the memory."""
        runs = [(setting, seed) for setting in grid for seed in seeds]
        size = runs_at_once(name, self._first)
        parts = [tuple(runs[start : start + size]) for start in range(0, len(runs), size)]
        return {
            title if len(parts) == 1 else f"{title}-{i + 1}": Trial(
                self._place, self._settings.rounds, name, part, watched and name == META_BAN
            )
            for i, part in enumerate(parts)
        }


def choose(rows: Iterable[Row]) -> dict[str, Setting]:
    """Returns each method's setting with the least regret in the trials of tuning."""
    regrets: dict[str, dict[Any, float]] = {}
    for (method, setting), runs in grouped(rows, "method", "setting").items():
        total = sum(run["errors"][-1] for run in runs)
        regrets.setdefault(method, {})[setting] = total
    return {name: dict(min(tried, key=tried.__getitem__)) for name, tried in regrets.items()}


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
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # trials run beside each other; threads in each would only wait
    try:
        return _run(trial, report)
    finally:
        torch.set_num_threads(threads)


def _run(trial: Trial, report: Report) -> list[Row]:
    settings, seeds = zip(*trial.runs, strict=True)
    drawn = {seed: world(trial.place, trial.rounds, seed) for seed in set(seeds)}
    worlds = [drawn[seed] for seed in seeds]
    runs, spent = _timed(METHODS[trial.method].make(worlds[0].dim, settings))
    opinions = [each.opinions for each in worlds if each.opinions is not None]
    watched = trial.watched and len(opinions) == len(worlds)
    recovered = _recovered(meta_bans(worlds[0].dim, settings), opinions) if watched else None
    recovery = np.zeros((len(RECOVERY), len(seeds), trial.rounds))

    def watch(moment: Moment[Any]) -> None:
        if moment.t % max(1, trial.rounds // _POINTS) == 0:
            report(moment.t, trial.rounds)
        if recovered is not None:
            recovery[:, :, moment.t] = recovered(moment)

    played = play(runs, worlds, seeds, watch)
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


def _timed(runs: Runs[Any]) -> tuple[Runs[Any], Callable[[], float]]:
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

    return Runs(runs.init, clocked(runs.choose), clocked(runs.update)), lambda: total


def _recovered(
    policy: MetaBan, opinions: Sequence[Callable[[int], Array]]
) -> Callable[[Moment[MetaBanState]], Array]:
    """Returns what says how right groups are in a round: means over arms, shape (3, R)."""

    def recovered(moment: Moment[MetaBanState]) -> Array:
        pairs = list(zip(moment.rounds, moment.came, strict=True))
        users = np.array([came.index(offer.user) for offer, came in pairs])
        x = torch.from_numpy(np.stack([offer.arms for offer, _ in pairs])).float().mT
        groups = policy.groups(moment.state, users, x)
        found = []
        for run, (_, came) in enumerate(pairs):
            inferred = groups.members[groups.of_arms[run], : len(came)]
            expected = opinions[run](moment.t)[:, list(came)]
            found.append(group_recovery(inferred, true_groups(expected, int(users[run]))))
        return np.array([[part.mean() for part in each] for each in found]).T

    return recovered
