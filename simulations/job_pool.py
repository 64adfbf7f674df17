"""Runs jobs here, in processes or on a Ray cluster; keeps the rows that each returns in a file."""

import _thread
import contextlib
import functools
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Final, TypeVar

from joblib import Parallel, delayed, register_parallel_backend
from joblib.externals.loky.process_executor import BrokenProcessPool
from threadpoolctl import threadpool_limits

from engram.cli.console import err
from engram.core.machine import cores
from engram.core.process_modes import Shared, on_one_core, on_threads
from engram.settings.errors import Refused, RunStopped
from engram.settings.files import replace_file
from engram.settings.process_starts import safe_path
from engram.simulations.ray_connect import join

Row = dict[str, Any]
Progress = Callable[..., None]  # called with how much of a job is done, the total, and a result
Job = Callable[[Progress], list[Row]]  # returns rows, each with "errors"; picklable
AnyJob = TypeVar("AnyJob")
Tell = Callable[[int, str], None]  # called with how much is done, and a result or ""

_PAUSE: Final = 0.1  # seconds between looks at the progress of other processes
_SEMAPHORES: Final = 16  # loky takes about ten


class Pool:
    """Runs jobs that do not depend on each other."""

    def __init__(
        self,
        folder: Path | None,
        *,
        begin: Callable[[], None] = lambda: None,
        new_line: Callable[[str, int], Tell] = lambda title, total: lambda done, found: None,
        processes: int | None = None,
        ray: str | None = None,
        resumed: Path | None = None,
    ) -> None:
        """Prepares; nothing is written or started yet.

        Args:
            folder: Where each job's rows are kept, in ``NAME.json``; None for jobs without rows.
            begin: Makes the folder if it is missing; called before the first job.
            new_line: Begins a line of progress: ``(title, total) -> tell``.
            processes: How many jobs run at once; with 1, in this process. By default one for each
                core that may be used. Where processes cannot begin, all run in this one.
            ray: Address of a Ray cluster, whose cores run the jobs instead.
            resumed: What a user resumes where a process was lost; by default the folder.

        Raises:
            Refused: If both ``processes`` and ``ray`` are given.
        """
        if ray is not None and processes is not None:
            raise Refused("ray and processes exclude each other: a cluster's cores are all used")
        self.new_line = new_line
        self.at_once = 1 if ray else processes or cores()  # on this machine
        self._folder, self._begin, self._ray = folder, begin, ray
        self._resumed = resumed or folder
        self._lines: dict[str, Tell] = {}

    def left(self, jobs: Mapping[str, AnyJob]) -> dict[str, AnyJob]:
        """Returns the jobs that are not done yet."""
        return {name: job for name, job in jobs.items() if not self._kept(name)}

    def run(self, jobs: Mapping[str, Job]) -> list[Row]:
        """Runs the jobs that are left, and returns the rows of all, in the order of the jobs.

        Raises:
            Refused: If a job's file is damaged.
            RunStopped: If a process was lost.
        """
        left = self.left(jobs)
        at_once = min(self.at_once, len(left))
        if at_once > cores():
            _say(f"{at_once} processes share the cores that may be used, {cores()}")
        lost = [_join(self._ray)] if left and self._ray else []
        self._begin()
        beside = lost or (at_once > 1 and _can_begin())
        for name, rows in self._beside(left, lost) if beside else self._here(left):
            if self._folder is not None:
                replace_file(self._folder / f"{name}.json", json.dumps(rows).encode())
        return [row for name in jobs if (path := self._kept(name)) for row in _read(path)]

    def _kept(self, name: str) -> Path | None:
        path = self._folder and self._folder / f"{name}.json"
        return path if path and path.is_file() else None

    def _tell(self, name: str, done: int, total: int, found: str = "") -> None:
        if name not in self._lines:
            self._lines[name] = self.new_line(name, total)
        self._lines[name](done, found)

    def _here(self, left: Mapping[str, Job]) -> Iterator[tuple[str, list[Row]]]:
        for name, job in left.items():
            with one_thread():
                rows = job(functools.partial(self._tell, name))
            yield name, rows

    def _beside(
        self, left: Mapping[str, Job], lost: Sequence[type[Exception]]
    ) -> Iterator[tuple[str, list[Row]]]:
        """Runs jobs by joblib; ``lost`` are further errors that say that a process was lost."""
        with contextlib.ExitStack() as stack:
            try:
                news = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="engram-")))
                done = self._start(stack, news, left)
            except OSError as error:  # of these two alone: jobs raise theirs below
                _say(f"all runs in this process, since others cannot begin: {error.strerror}")
                yield from self._here(left)
                return
            try:
                with self._watching(news) as look:
                    for name, rows in done:
                        look()
                        yield name, rows
            except (BrokenProcessPool, *lost) as error:
                reasons = [line for line in str(error).splitlines() if "exit codes" in line]
                what = "; ".join(["a process was lost", *reasons, "what is done is kept"])
                raise RunStopped(f"{what}: resume {self._resumed} to go on") from error

    def _start(
        self, stack: contextlib.ExitStack, news: Path, left: Mapping[str, Job]
    ) -> Generator[tuple[str, list[Row]]]:
        do = delayed(functools.partial(_do, news, None if self._ray else os.getpid()))
        parallel = Parallel(
            n_jobs=-1 if self._ray else min(self.at_once, len(left)),
            backend="ray" if self._ray else "loky",
            return_as="generator_unordered",
            batch_size=1,
            # No more than loky hands on to its processes at once: where others wait when
            # Ctrl-C comes, its thread dies with a traceback.
            pre_dispatch="2 * n_jobs",
        )
        stack.enter_context(safe_path())
        with _signals_later():  # inherited: only this process handles Ctrl-C
            done: Generator[tuple[str, list[Row]]] = parallel(do(*job) for job in left.items())
            stack.callback(done.close)
        return done

    @contextlib.contextmanager
    def _watching(self, news: Path) -> Iterator[Callable[[], None]]:
        """Shows jobs' progress from a thread; yields a function that reads their files at once."""
        ended, lock = threading.Event(), threading.Lock()

        def look() -> None:
            with lock:
                for path in sorted(news.iterdir()):
                    with contextlib.suppress(ValueError):  # half written
                        done, total, *found = path.read_text().split(" ", 2)
                        self._tell(path.name, int(done), int(total), *found)

        def watch() -> None:
            while not ended.wait(_PAUSE):
                try:
                    look()
                except KeyboardInterrupt:  # meant for the main thread
                    _thread.interrupt_main()
                    return

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield look
        finally:
            ended.set()
            thread.join()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Limits a job to one process of one thread, since jobs already use all cores."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(on_one_core())
        stack.enter_context(_ONE_FOR_BLAS())
        if "torch" in sys.modules:  # a job that needs it has loaded it by now
            stack.enter_context(on_threads(1))
        stack.enter_context(threadpool_limits(1, "openmp"))  # of this thread alone
        yield


_ONE_FOR_BLAS: Final = Shared(lambda: threadpool_limits(1, "blas"))


def _say(line: str) -> None:
    err.print(f"engram: {line}", markup=False, soft_wrap=True)


def _can_begin() -> bool:
    """Whether processes can share semaphores here; says why not.

    They are files in /dev/shm. Where joblib lacks them, it warns and works in threads. Other
    threads than the first cannot keep signals from processes that they begin.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    try:  # those of a forking context are removed at once; nothing is forked
        _ = [multiprocessing.get_context("fork").Semaphore() for _ in range(_SEMAPHORES)]
    except OSError as error:
        _say(f"all runs in this process, since others need shared memory: {error.strerror}")
        return False
    return True


def _read(path: Path) -> list[Row]:
    try:
        rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))
        if not all(row["errors"] for row in rows):
            raise ValueError("a row lacks its errors")
    except (ValueError, TypeError, KeyError) as error:
        raise Refused(f"{path} is damaged: remove it, to run its job again") from error
    return rows


@contextlib.contextmanager
def _signals_later() -> Iterator[None]:
    """Puts off Ctrl-C and `kill`, and lets processes begin that never see them."""
    numbers, came = (signal.SIGINT, signal.SIGTERM), set[int]()
    before = {number: signal.signal(number, lambda n, _: came.add(n)) for number in numbers}
    resource_tracker.ensure_running()  # when it begins, it lets signals through
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)  # which processes inherit
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)


def _join(address: str) -> type[Exception]:
    """Joins a Ray cluster as joblib's backend ``ray``; returns the base class of Ray's errors."""
    from ray.exceptions import RayError  # noqa: PLC0415 - slow to import, rarely wanted
    from ray.util.joblib.ray_backend import RayBackend  # noqa: PLC0415 - slow to import, rarely wanted

    class Yielding(RayBackend):
        """Ray's backend, which can return a generator although it does not declare it."""

        supports_return_generator = True

    register_parallel_backend("ray", Yielding)
    join(address)
    return RayError


# --- In another process ----------------------------------------------------------------------


def _do(news: Path, owner: int | None, name: str, job: Job) -> tuple[str, list[Row]]:
    """Writes progress to ``news``, if this machine has it; ``owner`` is None on a cluster."""
    told = -_PAUSE
    if owner is not None:
        _end_with(owner)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)

    def report(done: int, total: int, found: str = "") -> None:
        nonlocal told
        if found or done == total or time.monotonic() >= told + _PAUSE:
            told = time.monotonic()
            with contextlib.suppress(OSError):  # another machine, or a full disk
                (news / name).write_text(f"{done} {total} {found}".rstrip())

    with one_thread():
        return name, job(report)


@functools.cache  # one thread for all jobs
def _end_with(owner: int) -> None:
    """Ends this process, whether it works or waits for a job, once its owner has died."""

    def watch() -> None:
        while os.getppid() == owner:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
