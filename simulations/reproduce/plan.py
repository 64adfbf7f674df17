"""What a reproduction consists of: its settings, and the sweeps that follow from them."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np

from engram.meta.curvature import HESSIANS
from federation.errors import Refused
from simulations.reproduce.methods import METHODS
from simulations.reproduce.sweep import Measured, Run, Sweep

if TYPE_CHECKING:  # for it is there for type checkers alone
    from _typeshed import DataclassInstance

__all__ = [
    "MATCHED",
    "Case",
    "Plan",
    "Steps",
    "choose",
    "final_sweeps",
    "read_plan",
    "tuning_sweeps",
    "write_plan",
]

MATCHED: Final = "maml-matched"
"""The row of MAML with the step size of MOML v1, of which it then differs by the memory alone."""

AnyPlan = TypeVar("AnyPlan")

Steps = Mapping[str, tuple[float, float]]  # by method: beta, and eta

_PLAN: Final = "plan.json"


class Case(NamedTuple):
    """What an experiment brings to its plans.

    Attributes:
        make: Makes the problem; it travels to other processes.
        grid: Values of eta that tuning tries.
    """

    make: Callable[[], Measured]
    grid: tuple[float, ...]


@dataclass(frozen=True)
class Plan:
    """The settings of a reproduction.

    Attributes:
        experiment: ``sinewave``, or ``one-shot``.
        dataset: Of one-shot classification; empty otherwise.
        data_dir: Where that is.
        methods: Names of ``METHODS``, each once.
        batch_sizes: The values of K; of one-shot classification rows of each class.
        iterations: MAML's; the others see as many rows.
        seeds: Of the runs.
        tasks_per_step: B.
        hessian: One of ``curvature.HESSIANS``.
        alpha: Adaptation step size in training.
        adapt_lr: That in testing.
        steps: Where step sizes come from: ``recorded``, ``published``, or ``tuned``.
        step_sizes: Beta and eta by batch size (as text, as JSON has it) and method; empty if they
            are tuned.
    """

    experiment: str
    dataset: str
    data_dir: str
    methods: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    iterations: int
    seeds: tuple[int, ...]
    tasks_per_step: int
    hessian: str
    alpha: float
    adapt_lr: float
    steps: str
    step_sizes: Mapping[str, Steps]

    def __post_init__(self) -> None:
        """Refuses what cannot be.

        Raises:
            Refused: In one line.
        """
        for values, name in ((self.methods, "methods"), (self.batch_sizes, "batch sizes")):
            if len(set(values)) < len(values):
                raise Refused(f"{name} must be named once each, got {', '.join(map(str, values))}")
        for method in self.methods:
            if method not in METHODS:
                raise Refused(f"method must be one of {', '.join(METHODS)}, got {method!r}")
        if self.hessian not in HESSIANS:
            raise Refused(f"hessian must be one of {', '.join(HESSIANS)}, got {self.hessian!r}")
        least = {"iterations": self.iterations, "tasks-per-step": self.tasks_per_step}
        least |= {"batch-size": min(self.batch_sizes), "seeds": len(self.seeds)}
        for name, value in least.items():
            if value < 1:
                raise Refused(f"{name} must be at least 1, got {value}")


def write_plan(folder: Path, plan: "DataclassInstance") -> None:
    """Begins a folder with a plan, any dataclass that has an ``experiment``.

    Raises:
        Refused: Another run has begun it.
    """
    try:
        with (folder / _PLAN).open("x", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(plan), file, indent=2)
    except FileExistsError as error:
        raise Refused(f"{folder} is another run's: name another --out") from error


def read_plan(folder: Path, kind: Callable[..., AnyPlan], experiment: str) -> AnyPlan:
    """Returns the plan that a folder was begun with.

    Args:
        folder: Where it is.
        kind: Of plans, made of their fields.
        experiment: Which one it must be of.

    Raises:
        Refused: There is none, it is another experiment's, or it is damaged.
    """
    path = folder / _PLAN
    if not path.is_file():
        raise Refused(f"{folder} is not the folder of a reproduction: it has no {_PLAN}")
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        of = given.get("experiment", experiment)
        if of == experiment:
            lists = {key: tuple(value) for key, value in given.items() if isinstance(value, list)}
            return kind(**given | lists)
    except (ValueError, TypeError, AttributeError) as error:
        raise Refused(f"{path} is damaged: {error}") from error
    raise Refused(f"{folder} is one of engram reproduce {of}, not {experiment}")


# --- Sweeps --------------------------------------------------------------------------------


def tuning_sweeps(plan: Plan, case: Case) -> dict[str, Sweep]:
    """Returns the sweeps over the grid, by name, with two seeds that are none of the plan's.

    Two, since a step size may be too large for one of them.
    """
    seeds = [max(plan.seeds) + i for i in (1, 2)]
    sweeps = {}
    for size in plan.batch_sizes:
        for methods in _alike(plan.methods, lambda method: METHODS[method]):
            runs = [
                Run(method, method, beta, eta, seed)
                for method in methods
                for beta in METHODS[method].betas
                for eta in case.grid
                for seed in seeds
            ]
            sweeps[f"tune-{'+'.join(methods)}-k{size}"] = _sweep(plan, size, runs)
    return sweeps


def choose(rows: Iterable[Mapping[str, Any]]) -> dict[int, Steps]:
    """Returns, by batch size, each method's steps with the least error on training tasks."""
    errors: dict[int, dict[str, dict[tuple[float, float], float]]] = {}
    for row in rows:
        # Over the last eighth of the looks, which a lucky one does not decide.
        error = float(np.mean(row["errors"][-5:]))
        tried = errors.setdefault(row["batch-size"], {}).setdefault(row["method"], {})
        steps = row["beta"], row["eta"]
        tried[steps] = tried.get(steps, 0.0) + error
    return {
        size: {method: min(tried, key=tried.__getitem__) for method, tried in methods.items()}
        for size, methods in errors.items()
    }


def final_sweeps(plan: Plan, steps: Mapping[int, Steps]) -> dict[str, Sweep]:
    """Returns the sweeps that tables are made of, by name.

    Args:
        plan: The settings.
        steps: Step sizes by batch size; for another one, those of the nearest.
    """
    sweeps = {}
    for size in plan.batch_sizes:
        of = steps[min(steps, key=lambda other: abs(other - size))]
        named = [(method, method, *of[method]) for method in plan.methods]
        if {"maml", "moml-v1"} <= set(plan.methods):
            named.append((MATCHED, "maml", 1.0, of["moml-v1"][1]))
        for members in _alike(named, lambda row: METHODS[row[1]]):
            runs = [
                Run(name, method, beta, eta, seed)
                for name, method, beta, eta in members
                for seed in plan.seeds
            ]
            name = "+".join(row[0] for row in members)
            sweeps[f"{name}-k{size}"] = _sweep(plan, size, runs)
    return sweeps


def _sweep(plan: Plan, size: int, runs: Sequence[Run]) -> Sweep:
    return Sweep(tuple(runs), size, plan.tasks_per_step, plan.alpha, plan.hessian, plan.iterations)


def _alike(items: Sequence[Any], method: Callable[[Any], Any]) -> list[list[Any]]:
    """Groups items whose methods are built in the same way and have the same schedule."""
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for item in items:
        key = method(item).build, method(item).decays
        groups.setdefault(key, []).append(item)
    return list(groups.values())
