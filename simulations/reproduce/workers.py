"""Carries out a plan: its sweeps one after another, or beside each other in processes."""

import contextlib
import functools
import json
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any, NamedTuple

import torch

from federation.errors import EngramError, Refused, RunStopped
from federation.files import replace_file
from simulations.reproduce.plan import Case, Plan, choose, final_sweeps, tuning_sweeps
from simulations.reproduce.sweep import Measured, Need, Sweep, check_room, check_sweep, run_sweep

__all__ = ["carry_out"]

Tell = Callable[[str, int, int], None]  # a sweep's name, iterations done, of how many
Row = dict[str, Any]


class _Place(NamedTuple):
    """Where sweeps find what they need, and leave what comes of them."""

    make: Callable[[], Measured]
    folder: Path
    memory_dir: Path | None


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
    place = _Place(case.make, folder, memory_dir)

    def do(sweeps: Mapping[str, Sweep]) -> list[Row]:
        left = {name: s for name, s in sweeps.items() if not _path(folder, name).is_file()}
        needs = [check_sweep(_problem(case.make), sweep) for sweep in left.values()]
        at_once = sorted(needs, key=lambda need: need.size)[-processes:]
        check_room(at_once, memory_dir)
        begin(at_once)
        if min(processes, len(left)) > 1:
            _beside(place, left, processes, tell)
        else:
            for name, sweep in left.items():
                _do(place, name, sweep, tell)
        return [row for name in sweeps for row in _read(_path(folder, name))]

    if plan.steps == "tuned":
        steps = choose(do(tuning_sweeps(plan, case)))
    else:
        steps = {int(size): of for size, of in plan.step_sizes.items()}
    return do(final_sweeps(plan, steps))


@functools.lru_cache(maxsize=1)
def _problem(make: Callable[[], Measured]) -> Measured:
    return make()


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def _read(path: Path) -> list[Row]:
    try:
        rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))
        if not all(row["name"] and row["errors"] for row in rows):
            raise ValueError("a row lacks its name or errors")
    except (ValueError, TypeError, KeyError) as error:
        raise Refused(f"{path} is damaged: remove it, and its sweep is run again") from error
    return rows


def _do(place: _Place, name: str, sweep: Sweep, tell: Tell) -> None:
    """Runs a sweep, and keeps what comes of it."""
    torch.set_num_threads(1)  # small operators: two threads take longer
    problem = _problem(place.make)
    report = functools.partial(tell, name)
    trace = run_sweep(problem, sweep, memory_dir=place.memory_dir, report=report)
    found = problem.measure(trace.w, sweep.runs[0].method)
    rows = [
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
    replace_file(_path(place.folder, name), json.dumps(rows).encode())


# --- Processes -----------------------------------------------------------------------------


def _beside(place: _Place, left: Mapping[str, Sweep], processes: int, tell: Tell) -> None:
    """Runs sweeps in processes, each of which takes the next one when it has done one."""
    context = multiprocessing.get_context("spawn")
    shared = _Shared(context)
    count = min(processes, len(left))
    arguments = (place, list(left.items()), shared)
    workers = [context.Process(target=_work, args=arguments, daemon=True) for _ in range(count)]
    try:
        with _unasked():
            for worker in workers:
                worker.start()
        while any(worker.is_alive() for worker in workers) or not shared.news.empty():
            while not shared.news.empty():
                news = shared.news.get()
                if isinstance(news, BaseException):
                    raise news
                tell(*news)
            lost = [worker.exitcode for worker in workers if worker.exitcode]
            if lost:
                what = f"a process ended with status {lost[0]}"
                raise RunStopped(f"{what}; what is done is kept: resume {place.folder} to go on")
            time.sleep(0.1)
    finally:
        shared.stop.set()
        while any(worker.is_alive() for worker in workers):
            while not shared.news.empty():  # a full queue would hold them up
                shared.news.get()
            time.sleep(0.01)


@contextlib.contextmanager
def _unasked() -> Iterator[None]:
    """Lets processes begin without Ctrl-C, which they would answer with a traceback."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Shared:
    """What the processes have in common: which sweep is next, what they tell, whether to stop."""

    def __init__(self, context: SpawnContext) -> None:
        self.next = context.Value("i", 0)
        self.news = context.SimpleQueue()
        self.stop = context.Event()


class _Stopped(Exception):
    """Whoever started this process wants it to end."""


def _work(place: _Place, left: list[tuple[str, Sweep]], shared: _Shared) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # the one that started this one decides
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def tell(name: str, done: int, total: int) -> None:
        if shared.stop.is_set() or parent is None or os.getppid() != parent.pid:
            raise _Stopped
        shared.news.put((name, done, total))

    try:
        while True:
            with shared.next.get_lock():
                at = shared.next.value
                shared.next.value += 1
            if at >= len(left) or shared.stop.is_set():
                return
            name, sweep = left[at]
            _do(place, name, sweep, tell)
    except _Stopped:
        return
    except (EngramError, OSError) as error:
        shared.news.put(error)
    except Exception:  # whatever it is, whoever started this process has to know
        shared.news.put(RuntimeError(traceback.format_exc()))
