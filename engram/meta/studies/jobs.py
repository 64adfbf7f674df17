"""The sweeps of an experiment: those of tuning, if any, and the final ones."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from engram.core.machine import check_room
from engram.meta.studies.methods import METHODS
from engram.meta.studies.published import Steps
from engram.meta.studies.settings import MetaLearningSettings
from engram.meta.studies.sweep import Problem, Sweep, SweepRun, check_sweep, run_sweep
from engram.simulations.job_pool import Pool, Progress, Row
from engram.studies.summaries import grouped

MATCHED: Final = "maml-matched"
"""The row of MAML with MOML v1's step size, which then differs from MOML v1 only in the memory."""


class Case(NamedTuple):
    """Case of an experiment: its problem, sizes and steps."""

    make: Callable[[], Problem]  # makes the problem; picklable, for other processes
    sizes: Sequence[int]  # the batch sizes K
    alpha: float  # adaptation step size in training
    steps: Mapping[int, Steps]  # beta and eta by batch size and method, if not tuned
    grid: Sequence[float]  # values of eta that tuning tries


def measure(settings: MetaLearningSettings, case: Case, pool: Pool) -> list[Row]:
    """Runs an experiment's sweeps, and returns a row for each run.

    Returns:
        Rows with ``name``, ``method``, ``batch-size``, ``beta``, ``eta``, ``seed``,
        ``samples``, ``errors``, ``iterations``, ``seconds`` of an iteration, and the results of
        ``Problem.measure``.

    Raises:
        Refused: A sweep cannot be run; none has been started.
    """

    def do(sweeps: Mapping[str, Sweep]) -> list[Row]:
        left = pool.left(sweeps).values()
        sizes = sorted(check_sweep(_problem(case.make), sweep) for sweep in left)
        at_once = sum(sizes[-pool.at_once :])
        check_room("a model for each task and run", at_once, "name fewer --processes or --seeds")
        run = functools.partial(_run, case.make)
        return pool.run({name: functools.partial(run, sweep) for name, sweep in sweeps.items()})

    steps = choose(do(tuning_sweeps(settings, case))) if settings.tune else case.steps
    return do(final_sweeps(settings, case, steps))


@functools.lru_cache(maxsize=1)
def _problem(make: Callable[[], Problem]) -> Problem:
    return make()


def _run(make: Callable[[], Problem], sweep: Sweep, report: Progress) -> list[Row]:
    problem = _problem(make)
    trace = run_sweep(problem, sweep, report=report)
    found = problem.measure(trace.w, sweep.runs[0].method)
    return [
        {
            **run._asdict(),
            "batch-size": sweep.batch_size,
            "samples": trace.samples,
            "errors": errors.tolist(),
            "iterations": trace.iterations,
            "seconds": trace.seconds,
            **more,
        }
        for run, errors, more in zip(sweep.runs, trace.errors, found, strict=True)
    ]


def tuning_sweeps(settings: MetaLearningSettings, case: Case) -> dict[str, Sweep]:
    """Returns the sweeps over the grid, by name.

    They have two seeds, other than the experiment's, since a step size may be too large for one.
    """
    sweeps = {}
    for size in case.sizes:
        for methods in _alike(settings.methods, lambda method: METHODS[method]):
            runs = [
                SweepRun(method, method, beta, eta, seed)
                for method in methods
                for beta in METHODS[method].betas
                for eta in case.grid
                for seed in (settings.seeds, settings.seeds + 1)
            ]
            sweeps[f"tune-{'+'.join(methods)}-k{size}"] = _sweep(settings, case, size, runs)
    return sweeps


def choose(rows: Iterable[Row]) -> dict[int, Steps]:
    """Returns, by batch size, each method's beta and eta with the least error on training tasks."""
    errors: dict[tuple[int, str], dict[tuple[float, float], float]] = {}
    for (size, method, beta, eta), runs in grouped(
        rows, "batch-size", "method", "beta", "eta"
    ).items():
        # Averaged over the last eighth of the measurements, so that a lucky one does not decide.
        total = sum(float(np.mean(run["errors"][-5:])) for run in runs)
        errors.setdefault((size, method), {})[beta, eta] = total
    steps: dict[int, dict[str, tuple[float, float]]] = {}
    for (size, method), tried in errors.items():
        steps.setdefault(size, {})[method] = min(tried, key=tried.__getitem__)
    return dict(steps)


def final_sweeps(
    settings: MetaLearningSettings, case: Case, steps: Mapping[int, Steps]
) -> dict[str, Sweep]:
    """Returns the sweeps that tables are made from, by name.

    A batch size without step sizes takes those of the nearest batch size.
    """
    sweeps = {}
    for size in case.sizes:
        of = steps[min(steps, key=lambda other: abs(other - size))]
        named = [(method, method, *of[method]) for method in settings.methods]
        if {"maml", "moml-v1"} <= set(settings.methods):
            named.append((MATCHED, "maml", 1.0, of["moml-v1"][1]))
        for members in _alike(named, lambda row: METHODS[row[1]]):
            runs = [
                SweepRun(name, method, beta, eta, seed)
                for name, method, beta, eta in members
                for seed in range(settings.seeds)
            ]
            name = "+".join(row[0] for row in members)
            sweeps[f"{name}-k{size}"] = _sweep(settings, case, size, runs)
    return sweeps


def _sweep(s: MetaLearningSettings, case: Case, size: int, runs: Sequence[SweepRun]) -> Sweep:
    return Sweep(tuple(runs), size, s.tasks_per_step, case.alpha, s.curvature, s.iterations)


def _alike(items: Sequence[Any], method: Callable[[Any], Any]) -> list[list[Any]]:
    """Groups items by their methods' ``build`` and schedule."""
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for item in items:
        key = method(item).build, method(item).decays
        groups.setdefault(key, []).append(item)
    return list(groups.values())
