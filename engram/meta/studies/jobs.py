"""The sweeps of an experiment: those of tuning, if any, and the final ones."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.ticker import EngFormatter

from engram.compare.figures import COLORS, draw_band, finish, log_ticks, panels
from engram.core.machine import check_room
from engram.meta.studies.methods import METHODS
from engram.meta.studies.published import Steps
from engram.meta.studies.settings import MetaLearningSettings
from engram.meta.studies.sweep import Problem, Sweep, SweepRun, check_sweep, run_sweep
from engram.simulations.job_pool import Pool, Progress, Row
from engram.studies.summaries import grouped

MATCHED: Final = "maml-matched"
"""The row of MAML with MOML v1's step size, which then differs from MOML v1 only in the memory."""

_Row = tuple[str, str, float, float]  # a run's name, method, beta and eta


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

    steps = choose(do(_tuning_sweeps(settings, case))) if settings.tune else case.steps
    return do(_final_sweeps(settings, case, steps))


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


def _tuning_sweeps(settings: MetaLearningSettings, case: Case) -> dict[str, Sweep]:
    # Two seeds, other than the experiment's, since a step size may be too large for one.
    seeds = (settings.seeds, settings.seeds + 1)
    tried = [(name, beta) for name in settings.methods for beta in METHODS[name].betas]
    rows = [(name, name, beta, eta) for name, beta in tried for eta in case.grid]
    return _sweeps(settings, case, dict.fromkeys(case.sizes, rows), seeds, "tune-")


def choose(rows: Iterable[Row]) -> dict[int, Steps]:
    """Returns, by batch size, each method's beta and eta with the least error on training tasks."""
    errors: dict[tuple[int, str], dict[tuple[float, float], float]] = {}
    alike = grouped(rows, "batch-size", "method", "beta", "eta")
    for (size, method, beta, eta), runs in alike.items():
        # Averaged over the last eighth of the measurements, so that a lucky one does not decide.
        total = sum(float(np.mean(run["errors"][-5:])) for run in runs)
        errors.setdefault((size, method), {})[beta, eta] = total
    steps: dict[int, dict[str, tuple[float, float]]] = {}
    for (size, method), tried in errors.items():
        steps.setdefault(size, {})[method] = min(tried, key=tried.__getitem__)
    return dict(steps)


def _final_sweeps(
    settings: MetaLearningSettings, case: Case, steps: Mapping[int, Steps]
) -> dict[str, Sweep]:
    """Returns the sweeps of tables, by name; sizes without steps take those of the nearest one."""
    rows = {}
    for size in case.sizes:
        of = steps[min(steps, key=lambda other: abs(other - size))]
        rows[size] = [(method, method, *of[method]) for method in settings.methods]
        if {"maml", "moml-v1"} <= set(settings.methods):
            rows[size].append((MATCHED, "maml", 1.0, of["moml-v1"][1]))
    return _sweeps(settings, case, rows, range(settings.seeds), "")


def _sweeps(
    s: MetaLearningSettings,
    case: Case,
    rows: Mapping[int, Sequence[_Row]],
    seeds: Sequence[int],
    prefix: str,
) -> dict[str, Sweep]:
    """Returns sweeps by name: one for all rows of a batch size with one ``build`` and schedule."""
    found = {}
    for size, each in rows.items():
        groups: dict[tuple[Any, ...], list[_Row]] = {}
        for row in each:
            method = METHODS[row[1]]
            groups.setdefault((method.build, method.decays), []).append(row)
        for members in groups.values():
            names = "+".join(dict.fromkeys(name for name, *_ in members))
            runs = tuple(SweepRun(*row, seed) for row in members for seed in seeds)
            found[f"{prefix}{names}-k{size}"] = Sweep(
                runs, size, s.tasks_per_step, case.alpha, s.curvature, s.iterations
            )
    return found


def title_of(name: str) -> str:
    """Returns the title of runs by their name."""
    return "MAML, v1's eta" if name == MATCHED else METHODS[name].title


def by_name(done: Sequence[Row]) -> dict[tuple[int, str], list[Row]]:
    """Returns the runs by batch size and name: one for each seed."""
    return grouped(done, "batch-size", "name")


def figures_of(name: str, runs: Sequence[Row]) -> Row:
    """Summarizes runs that differ only in their seeds.

    ``iterations`` counts local steps, as the paper does; ``train-error`` is infinite if a run
    diverged, and ``diverged`` counts those; ``ms`` is the time of one iteration of one seed, in a
    sweep of several.
    """
    first, local_steps = runs[0], METHODS[runs[0]["method"]].local_steps
    last = [run["errors"][-1] for run in runs]
    return {
        "method": name,
        "beta": first["beta"],
        "eta": first["eta"],
        "runs": len(runs),
        "iterations": first["iterations"] * local_steps,
        "diverged": sum(not math.isfinite(error) for error in last),
        "train-error": float(np.mean(last)),
        "ms": 1e3 * first["seconds"] / local_steps,
    }


def cells(row: Row, tested: str) -> list[str]:
    """Returns the first cells of a table's row: the method, its step sizes, and its test result."""
    found = f"{row['diverged']} diverged" if row["diverged"] else tested
    return [title_of(row["method"]), f"{row['beta']:g}", f"{row['eta']:g}", found]


def draw_convergence(done: Sequence[Row], label: str, *, log: bool) -> bytes:
    """Plots the error on training tasks against rows seen, as PNG: Figure 1 of the MOML paper."""
    groups = by_name(done)
    sizes = sorted({size for size, _ in groups})
    figure, all_axes = panels(len(sizes), size=(1.5 + 5 * len(sizes), 4.5))
    for axes, size in zip(all_axes, sizes, strict=True):
        named = {name: runs for (k, name), runs in groups.items() if k == size}
        for color, (name, runs) in zip(COLORS, named.items(), strict=False):
            curves = np.array([run["errors"] for run in runs], dtype=float)
            curves[~np.isfinite(curves)] = np.nan
            x, style = runs[0]["samples"], "--" if name == MATCHED else "-"
            (line,) = axes.plot(x, curves.mean(0), style, color=color, label=title_of(name))
            draw_band(axes, line, curves.min(0), curves.max(0))
        axes.set(xlabel="samples", title=f"K = {size}")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        if log:
            log_ticks(axes, (1, 2, 3, 4, 6))
    all_axes[0].set_ylabel(f"{label}: mean over seeds, and their range")
    return finish(figure, all_axes[0])
