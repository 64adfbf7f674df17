"""Jobs one after another, or beside each other in processes; what each gives is kept in a file."""

import contextlib
import functools
import json
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any, TypeVar

from federation.errors import EngramError, Refused, RunStopped
from federation.files import replace_file

__all__ = ["Report", "Tell", "Work", "jobs_left", "run_jobs"]

Row = dict[str, Any]
Job = TypeVar("Job")
Report = Callable[[int, int], None]  # how much of a job is done, and of how much
Tell = Callable[[str, int, int], None]  # likewise, with the job's name
Work = Callable[[Job, Report], list[Row]]


def jobs_left(jobs: Mapping[str, Job], folder: Path) -> dict[str, Job]:
    """Returns the jobs that are not done yet."""
    return {name: job for name, job in jobs.items() if not _path(folder, name).is_file()}


def run_jobs(
    jobs: Mapping[str, Job], work: Work[Job], folder: Path, *, processes: int, tell: Tell
) -> list[Row]:
    """Does the jobs that are left, and returns the rows of all, in their order.

    Args:
        jobs: By name.
        work: Does one, and returns its rows, each with ``errors``. It travels to other processes.
        folder: Where each job's rows are kept, in ``NAME.json``.
        processes: How many run beside each other; with 1, in this process.
        tell: Is told now and then how far a job is.

    Raises:
        Refused: A file is damaged.
        RunStopped: A process was lost.
    """
    left = jobs_left(jobs, folder)
    do = functools.partial(_do, work, folder)
    if min(processes, len(left)) > 1:
        _beside(do, left, processes, tell, folder)
    else:
        for name, job in left.items():
            do(name, job, tell)
    return [row for name in jobs for row in _read(_path(folder, name))]


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def _read(path: Path) -> list[Row]:
    try:
        rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))
        if not all(row["errors"] for row in rows):
            raise ValueError("a row lacks its errors")
    except (ValueError, TypeError, KeyError) as error:
        raise Refused(f"{path} is damaged: remove it, and it is made again") from error
    return rows


def _do(work: Work[Job], folder: Path, name: str, job: Job, tell: Tell) -> None:
    rows = work(job, functools.partial(tell, name))
    replace_file(_path(folder, name), json.dumps(rows).encode())


# --- Processes -----------------------------------------------------------------------------


def _beside(
    do: Callable[[str, Job, Tell], None],
    left: Mapping[str, Job],
    processes: int,
    tell: Tell,
    folder: Path,
) -> None:
    """Does jobs in processes, each of which takes the next one when it has done one."""
    context = multiprocessing.get_context("spawn")
    shared = _Shared(context)
    count = min(processes, len(left))
    arguments = (do, list(left.items()), shared)
    workers = [context.Process(target=_work, args=arguments, daemon=True) for _ in range(count)]
    try:
        with _unasked():
            for worker in workers:
                worker.start()
        at_work = True
        while at_work:
            at_work = any(worker.is_alive() for worker in workers)  # before what is left is read
            while not shared.news.empty():
                news = shared.news.get()
                if isinstance(news, BaseException):
                    raise news
                tell(*news)
            lost = [worker.exitcode for worker in workers if worker.exitcode]
            if lost:
                what = f"a process ended with status {lost[0]}"
                raise RunStopped(f"{what}; what is done is kept: resume {folder} to go on")
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
    """What the processes have in common: which job is next, what they tell, whether to stop."""

    def __init__(self, context: SpawnContext) -> None:
        self.next = context.Value("i", 0)
        self.news = context.SimpleQueue()
        self.stop = context.Event()


class _Stopped(Exception):
    """Whoever started this process wants it to end."""


def _work(
    do: Callable[[str, Job, Tell], None], left: list[tuple[str, Job]], shared: _Shared
) -> None:
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
            name, job = left[at]
            do(name, job, tell)
    except _Stopped:
        return
    except (EngramError, OSError) as error:
        shared.news.put(error)
    except Exception:  # whatever it is, whoever started this process has to know
        shared.news.put(RuntimeError(traceback.format_exc()))
