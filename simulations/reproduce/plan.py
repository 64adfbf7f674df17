"""What a reproduction consists of, and what has been done of it: sweeps, kept in a folder."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from engram.meta.curvature import HESSIANS
from engram.types import Params
from federation.errors import Refused
from federation.files import replace_file
from simulations.reproduce.methods import METHODS
from simulations.reproduce.sweep import Problem, Run, Sweep, run_sweep

__all__ = ["MATCHED", "Measured", "Plan", "Steps", "Tell", "carry_out", "read_plan", "write_plan"]

MATCHED: Final = "maml-matched"
"""The row of MAML with the step size of MOML v1, of which it then differs by the memory alone."""

Steps = Mapping[str, tuple[float, float]]  # by method: beta, and eta
Tell = Callable[[int, int], None]  # iterations done, of how many

_PLAN: Final = "plan.json"


class Measured(Problem, Protocol):
    """A problem that is also tested."""

    def measure(self, w: Params, method: str) -> list[dict[str, Any]]:
        """Returns what tests say of each meta-model, as JSON has it."""


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
        steps: ``recorded`` step sizes, those ``published``, or ``tuned`` ones.
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
    steps: str

    def __post_init__(self) -> None:
        """Refuses what cannot be.

        Raises:
            Refused: In one line.
        """
        for values, name in ((self.methods, "methods"), (self.batch_sizes, "batch sizes")):
            if len(set(values)) < len(values):
                raise Refused(f"{name} must be named once each, got {', '.join(map(str, values))}")
        if self.hessian not in HESSIANS:
            raise Refused(f"hessian must be one of {', '.join(HESSIANS)}, got {self.hessian!r}")
        least = {"iterations": self.iterations, "tasks-per-step": self.tasks_per_step}
        least |= {"batch-size": min(self.batch_sizes), "seeds": len(self.seeds)}
        for name, value in least.items():
            if value < 1:
                raise Refused(f"{name} must be at least 1, got {value}")


def write_plan(folder: Path, plan: Plan) -> None:
    """Begins a folder."""
    text = json.dumps(dataclasses.asdict(plan), indent=2)
    replace_file(folder / _PLAN, text.encode())


def read_plan(folder: Path) -> Plan:
    """Returns the plan that a folder was begun with.

    Raises:
        Refused: There is none, or it is damaged.
    """
    path = folder / _PLAN
    if not path.is_file():
        raise Refused(f"{folder} is not the folder of a reproduction: it has no {_PLAN}")
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        lists = {key: tuple(value) for key, value in given.items() if isinstance(value, list)}
        return Plan(**given | lists)
    except (ValueError, TypeError, AttributeError) as error:
        raise Refused(f"{path} is damaged: {error}") from error


# --- Doing it ------------------------------------------------------------------------------


def carry_out(
    plan: Plan,
    problem: Measured,
    steps: Callable[[int], Steps],
    grid: Sequence[float],
    folder: Path,
    *,
    alpha: float,
    begin: Callable[[str], Tell],
    memory_dir: Path | None = None,
) -> list[dict[str, Any]]:
    """Does what is left of a plan, sweep by sweep, and returns what came of each run.

    Args:
        plan: What to do.
        problem: What is learned.
        steps: For each batch size, the step sizes of the methods; of a plan that tunes, not asked.
        grid: Values of eta that tuning tries.
        folder: The plan's. Each sweep that is done is kept there, and not done again.
        alpha: Adaptation step size.
        begin: Is told the name of each sweep that begins, and returns whom to tell of its progress.
        memory_dir: As in ``run_sweep``.

    Returns:
        For each run: ``name``, ``method``, ``batch-size``, ``beta``, ``eta``, ``seed``,
        ``samples``, ``errors``, ``iterations``, ``seconds`` of its sweep for each of its runs, and
        what ``measure`` says.

    Raises:
        Refused: A sweep cannot be run; those before it are kept.
    """
    done = []
    for size in plan.batch_sizes:

        def sweep(name: str, runs: Sequence[Run], size: int = size) -> list[dict[str, Any]]:
            path = folder / f"{name}-k{size}.json"
            if not path.is_file():
                work = Sweep(
                    tuple(runs), size, plan.tasks_per_step, alpha, plan.hessian, plan.iterations
                )
                names = dict.fromkeys(run.method for run in runs)
                tell = begin(f"{'tuning ' * name.startswith('tune')}K={size} {', '.join(names)}")
                trace = run_sweep(problem, work, memory_dir=memory_dir, report=tell)
                found = problem.measure(trace.w, runs[0].method)
                rows = [
                    {
                        **run._asdict(),
                        "batch-size": size,
                        "samples": trace.samples,
                        "errors": errors.tolist(),
                        "iterations": trace.iterations,
                        "seconds": trace.seconds / len(runs),
                        **more,
                    }
                    for run, errors, more in zip(runs, trace.errors, found, strict=True)
                ]
                replace_file(path, json.dumps(rows).encode())
            kept: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
            return kept

        chosen = _tune(plan, grid, sweep) if plan.steps == "tuned" else steps(size)
        for name, runs in _sweeps(plan, chosen):
            done += sweep(name, runs)
    return done


def _sweeps(plan: Plan, steps: Steps) -> Iterator[tuple[str, list[Run]]]:
    """Yields the runs of a batch size, together where methods are built alike."""
    named = [(method, method, *steps[method]) for method in plan.methods]
    if {"maml", "moml-v1"} <= set(plan.methods):
        named.append((MATCHED, "maml", 1.0, steps["moml-v1"][1]))
    for members in _alike(named, lambda row: METHODS[row[1]]):
        title = "+".join(row[0] for row in members)
        runs = [
            Run(name, method, beta, eta, seed)
            for name, method, beta, eta in members
            for seed in plan.seeds
        ]
        yield title, runs


def _tune(
    plan: Plan,
    grid: Sequence[float],
    sweep: Callable[[str, Sequence[Run]], list[dict[str, Any]]],
) -> Steps:
    """Returns each method's best step sizes by the error on training tasks, with other seeds."""
    seeds = [max(plan.seeds) + i for i in (1, 2)]  # step sizes may be too large for one of them
    best: dict[str, tuple[float, float]] = {}
    for methods in _alike(plan.methods, lambda method: METHODS[method]):
        runs = [
            Run(method, method, beta, eta, seed)
            for method in methods
            for beta in METHODS[method].betas
            for eta in grid
            for seed in seeds
        ]
        rows = sweep(f"tune-{'+'.join(methods)}", runs)
        for method in methods:
            errors: dict[tuple[float, float], float] = {}
            for row in rows:
                if row["method"] == method:
                    # Over the last eighth of the looks, which a lucky one does not decide.
                    steps = row["beta"], row["eta"]
                    errors[steps] = errors.get(steps, 0.0) + float(np.mean(row["errors"][-5:]))
            best[method] = min(errors, key=errors.__getitem__)
    return best


def _alike(items: Sequence[Any], method: Callable[[Any], Any]) -> list[list[Any]]:
    """Groups items whose methods are built in the same way and have the same schedule."""
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for item in items:
        key = method(item).build, method(item).decays
        groups.setdefault(key, []).append(item)
    return list(groups.values())
