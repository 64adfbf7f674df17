"""Contextual bandits of the MOLAR paper (Section 4.1, Figure 4): five policies in the same worlds.

Each trial draws parameters, contexts and noise anew, for all policies alike. Activation
probabilities are drawn once, so that a task is the same one in every trial.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.molar.bandits.environments import BanditModel, TaskEnvironment, sparse_environments
from engram.molar.bandits.play import play_tasks
from engram.molar.bandits.policies import (
    MultitaskBandit,
    lasso_bandit,
    molar_bandit,
    ols_bandit,
    robust_multitask_bandit,
    trace_norm_bandit,
)
from federation.errors import Refused
from federation.files import replace_file
from federation.machine import available
from simulations.reproduce.report import Row

__all__ = [
    "ACTIVATION",
    "POLICIES",
    "SHOWN",
    "SIGMA",
    "TASKS",
    "BanditPlan",
    "Policy",
    "carry_out",
    "check_room",
    "regrets",
    "worlds",
]

Array = npt.NDArray[np.float64]
Tell = Callable[[int, str], None]  # trials done, and what is played

TASKS: Final = 20
DIM: Final = 30
ARMS: Final = 3
SIGMA: Final = 0.5  # of the noise; MOLARB is told, as constants of the others are tuned to it

_ACTIVATION, _WORLD, _TIES = 2, 101, 102  # what seeds are for

# A draw of 20 uniform numbers whose smallest, 0.055, and largest, 0.967, are about as expected.
ACTIVATION: Final = np.random.default_rng(_ACTIVATION).uniform(size=TASKS)

_ORDER: Final = np.argsort(-ACTIVATION)
SHOWN: Final = {  # tasks of which there are curves
    "largest": int(_ORDER[0]),
    "middle": int(_ORDER[TASKS // 2]),
    "smallest": int(_ORDER[-1]),
}

_POINTS: Final = 250  # of a curve


class Policy(NamedTuple):
    """A policy.

    Attributes:
        title: What the paper calls it.
        bandit: How it plays.
    """

    title: str
    bandit: MultitaskBandit[Any, Any]


POLICIES: Final = {
    "ols": Policy("OLSB", ols_bandit()),
    "lasso": Policy("LASSOB", lasso_bandit()),
    "trace-norm": Policy("TNB", trace_norm_bandit()),
    "robust-multitask": Policy("RMB", robust_multitask_bandit()),
    "molar": Policy("MOLARB", molar_bandit(sigma=SIGMA)),
}


@dataclass(frozen=True)
class BanditPlan:
    """The settings of a reproduction.

    Attributes:
        experiment: ``molar-bandit``.
        horizon: T, rounds of a trial.
        trials: How many.
    """

    experiment: str
    horizon: int
    trials: int

    def __post_init__(self) -> None:
        """Refuses what cannot be.

        Raises:
            Refused: In one line.
        """
        for name in ("horizon", "trials"):
            if (value := getattr(self, name)) < 1:
                raise Refused(f"{name} must be at least 1, got {value}")


def worlds(
    model: BanditModel, activation: Array, horizon: int, trial: int
) -> list[TaskEnvironment]:
    """Draws what the tasks of a trial meet: (d, s, M, K) = (30, 2, 20, 3)."""
    rng = np.random.default_rng([_WORLD, trial])
    return sparse_environments(
        rng,
        model,
        activation=activation,
        horizon=horizon,
        dim=DIM,
        differing=2,
        arms=ARMS,
        sigma=SIGMA,
    )


def regrets(policy: MultitaskBandit[Any, Any], drawn: list[TaskEnvironment], trial: int) -> Array:
    """Plays a trial; returns the cumulative regret of each task after each round, (M, T)."""
    return play_tasks(policy, drawn, np.random.default_rng([_TIES, trial]).spawn(len(drawn)))


def check_room(horizon: int) -> None:
    """Refuses a horizon whose worlds do not fit the memory.

    Raises:
        Refused: It is so.
    """
    # Contexts are most of it. With what is made of them in a batch, 1.4 times that was measured.
    need = int(2 * ACTIVATION.sum() * horizon * ARMS * DIM * 8)
    if need > (free := available("cpu")):
        needs, has = (f"{size / 2**20:,.0f} MiB" for size in (need, free))
        raise Refused(f"a trial of {horizon} rounds needs {needs} of memory, and {has} are free")


def carry_out(
    plan: BanditPlan, folder: Path, *, begin: Callable[[], None], tell: Tell
) -> list[Row]:
    """Does what is left of a plan, and returns what came of each trial.

    Args:
        plan: What to do.
        folder: The plan's. Each trial that is done is kept there, and not done again.
        begin: Makes the folder, unless it is there; called when nothing is refused any more.
        tell: Is told before each play, and when a trial is done.

    Returns:
        For each trial ``rounds``, at which curves have points, and for each of ``policies``
        ``regret`` (of each task in the end) and ``curves`` (by the names of ``SHOWN``).

    Raises:
        Refused: It needs more memory than there is; nothing has been done.
    """
    paths = [folder / f"trial-{trial:03d}.json" for trial in range(plan.trials)]
    done = [_read(path) if path.is_file() else None for path in paths]
    if None in done:
        check_room(plan.horizon)
    begin()
    rows = []
    for trial, (path, known) in enumerate(zip(paths, done, strict=True)):
        row = known
        if row is None:
            row = _run(plan.horizon, trial, tell)
            replace_file(path, json.dumps(row).encode())
        rows.append(row)
        tell(trial + 1, "")
    return rows


def _run(horizon: int, trial: int, tell: Tell) -> Row:
    drawn = worlds("C", ACTIVATION, horizon, trial)
    rounds = np.unique(np.linspace(1, horizon, _POINTS).round().astype(int))
    row: Row = {"rounds": rounds.tolist(), "policies": {}}
    for name, policy in POLICIES.items():
        tell(trial, policy.title)
        found = regrets(policy.bandit, drawn, trial)
        row["policies"][name] = {
            "regret": found[:, -1].tolist(),
            "curves": {shown: found[m, rounds - 1].tolist() for shown, m in SHOWN.items()},
        }
    return row


def _read(path: Path) -> Row:
    try:
        row: Row = json.loads(path.read_text(encoding="utf-8"))
        found = [row["policies"][name] for name in POLICIES]
        curves = [[one["curves"][shown] for shown in SHOWN] for one in found]
        if np.shape(curves) != (len(POLICIES), len(SHOWN), len(row["rounds"])):
            raise ValueError("its curves are not whole")
        if np.shape([one["regret"] for one in found]) != (len(POLICIES), TASKS):
            raise ValueError("it lacks tasks")
    except (ValueError, TypeError, KeyError) as error:
        raise Refused(f"{path} is damaged: remove it, and its trial is run again") from error
    return row
