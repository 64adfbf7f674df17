"""Carries out a plan of sweeps: those of tuning, if there is any, and then those of its tables."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from simulations.reproduce.jobs import Report, Tell, jobs_left, run_jobs
from simulations.reproduce.plan import Case, Plan, choose, final_sweeps, tuning_sweeps
from simulations.reproduce.sweep import Measured, Need, Sweep, check_room, check_sweep, run_sweep

__all__ = ["carry_out"]

Row = dict[str, Any]


def carry_out(
    plan: Plan,
    case: Case,
    folder: Path,
    *,
    processes: int,
    begin: Callable[[Sequence[Need]], None],
    tell: Tell,
    memory_dir: Path | None = None,
) -> list[Row]:
    """Does what is left of a plan, and returns what came of each run.

    Args:
        plan: What to do.
        case: Of which experiment.
        folder: The plan's. Each sweep that is done is kept there, and not done again.
        processes: How many sweeps run beside each other; with 1, in this process.
        begin: Makes the folder, unless it is there; called when nothing is refused any more, with
            what the largest sweeps that run at once need.
        tell: Is told now and then how far a sweep is.
        memory_dir: As in ``run_sweep``.

    Returns:
        For each run: ``name``, ``method``, ``batch-size``, ``beta``, ``eta``, ``seed``,
        ``samples``, ``errors``, ``iterations``, ``seconds`` of an iteration, and what ``measure``
        says.

    Raises:
        Refused: A sweep cannot be run; nothing has been done.
    """
    work = functools.partial(_run, case.make, memory_dir)

    def do(sweeps: Mapping[str, Sweep]) -> list[Row]:
        left = jobs_left(sweeps, folder).values()
        needs = [check_sweep(_problem(case.make), sweep) for sweep in left]
        at_once = sorted(needs, key=lambda need: need.size)[-processes:]
        check_room(at_once, memory_dir)
        begin(at_once)
        return run_jobs(sweeps, work, folder, processes=processes, tell=tell)

    if plan.steps == "tuned":
        steps = choose(do(tuning_sweeps(plan, case)))
    else:
        steps = {int(size): of for size, of in plan.step_sizes.items()}
    return do(final_sweeps(plan, steps))


@functools.lru_cache(maxsize=1)
def _problem(make: Callable[[], Measured]) -> Measured:
    return make()


def _run(
    make: Callable[[], Measured], memory_dir: Path | None, sweep: Sweep, report: Report
) -> list[Row]:
    """Runs a sweep."""
    torch.set_num_threads(1)  # small operators: two threads take longer
    problem = _problem(make)
    trace = run_sweep(problem, sweep, memory_dir=memory_dir, report=report)
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
