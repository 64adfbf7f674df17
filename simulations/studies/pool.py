"""Runs a study's jobs, here, in processes or on a Ray cluster; keeps what each gives in a file."""

import _thread
import contextlib
import functools
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Final, TypeVar

from threadpoolctl import threadpool_limits

from federation.errors import Refused, RunStopped
from federation.files import replace_file

Row = dict[str, Any]
Progress = Callable[[int, int], None]  # how much of a job is done, and of how much
Job = Callable[[Progress], list[Row]]  # returns rows, each with "errors"; it can be pickled
AnyJob = TypeVar("AnyJob")
Tell = Callable[[int, str], None]  # how much is done, and what has been found, if anything

_PAUSE: Final = 0.1  # seconds between looks at the progress of other processes


class Pool:
    """Where the jobs of one study are run."""

    def __init__(
        self,
        folder: Path,
        *,
        begin: Callable[[], None] = lambda: None,
        new_line: Callable[[str, int], Tell] = lambda title, total: lambda done, found: None,
        processes: int | None = None,
        ray: str | None = None,
    ) -> None:
        """Prepares; nothing is written or started yet.

        Args:
            folder: Where each job's rows are kept, in ``NAME.json``.
            begin: Makes the folder unless it is there; called before the first job.
            new_line: Begins a line of progress: ``(title, total) -> tell``.
            processes: How many jobs run beside each other; with 1, in this process. By default one
                for each core.
            ray: Address of a Ray cluster, whose cores run the jobs instead.
        """
        self.new_line = new_line
        self.at_once = 1 if ray else processes or os.cpu_count() or 1  # on this machine
        self._folder, self._begin, self._ray = folder, begin, ray
        self._lines: dict[str, Tell] = {}

    def left(self, jobs: Mapping[str, AnyJob]) -> dict[str, AnyJob]:
        """Returns the jobs that are not done yet."""
        return {name: job for name, job in jobs.items() if not self._path(name).is_file()}

    def run(self, jobs: Mapping[str, Job]) -> list[Row]:
        """Does the jobs that are left, and returns the rows of all, in their order.

        Raises:
            Refused: A job's file is damaged.
            RunStopped: A process was lost.
        """
        left = self.left(jobs)
        if left and (self._ray or min(self.at_once, len(left)) > 1):
            for name, rows in self._beside(left):
                self._keep(name, rows)
        else:
            self._begin()
            for name, job in left.items():
                with _one_thread():
                    self._keep(name, job(functools.partial(self._tell, name)))
        return [row for name in jobs for row in _read(self._path(name))]

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _keep(self, name: str, rows: list[Row]) -> None:
        replace_file(self._path(name), json.dumps(rows).encode())

    def _tell(self, name: str, done: int, total: int) -> None:
        if name not in self._lines:
            self._lines[name] = self.new_line(name, total)
        self._lines[name](done, "")

    def _beside(self, left: Mapping[str, Job]) -> Iterator[tuple[str, list[Row]]]:
        """Does jobs by joblib, and yields the rows of each when it is done."""
        from joblib import Parallel, delayed  # noqa: PLC0415 - slow to import
        from joblib.externals.loky.process_executor import BrokenProcessPool  # noqa: PLC0415 - likewise

        lost = (BrokenProcessPool, *([_join(self._ray)] if self._ray else []))
        self._begin()
        with contextlib.ExitStack() as stack:
            news = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="engram-")))
            do = delayed(functools.partial(_do, news, None if self._ray else os.getpid()))
            parallel = Parallel(
                n_jobs=-1 if self._ray else min(self.at_once, len(left)),
                backend="ray" if self._ray else "loky",
                return_as="generator_unordered",
                batch_size=1,
                pre_dispatch="all",
            )
            with _signals_later():  # Ctrl-C is this process's alone
                done = parallel(do(name, job) for name, job in left.items())
                stack.callback(done.close)
            try:
                with self._watching(news) as look:
                    for name, rows in done:
                        look()
                        yield name, rows
            except lost as error:
                reasons = [line for line in str(error).splitlines() if "exit codes" in line]
                what = "; ".join(["a process was lost", *reasons, "what is done is kept"])
                raise RunStopped(f"{what}: resume {self._folder} to go on") from error

    @contextlib.contextmanager
    def _watching(self, news: Path) -> Iterator[Callable[[], None]]:
        """Tells in a thread how far jobs are, by what they write into a folder.

        Yields:
            What looks there at once.
        """
        ended, lock = threading.Event(), threading.Lock()

        def look() -> None:
            with lock:
                for path in sorted(news.iterdir()):
                    with contextlib.suppress(ValueError):  # it is being written
                        done, total = map(int, path.read_text().split())
                        self._tell(path.name, done, total)

        def watch() -> None:
            while not ended.wait(_PAUSE):
                try:
                    look()
                except KeyboardInterrupt:  # which is the main thread's
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
def _one_thread() -> Iterator[None]:
    """Lets a job use one thread, since jobs run beside each other, and more would only wait."""
    torch = sys.modules.get("torch")  # if the job needs it, it is loaded by now
    threads = torch.get_num_threads() if torch else 1
    with threadpool_limits(1):
        if torch:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            if torch:
                torch.set_num_threads(threads)


def _read(path: Path) -> list[Row]:
    try:
        rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))
        if not all(row["errors"] for row in rows):
            raise ValueError("a row lacks its errors")
    except (ValueError, TypeError, KeyError) as error:
        raise Refused(f"{path} is damaged: remove it, and it is made again") from error
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
    """Joins a Ray cluster until this process ends, as joblib's backend ``ray``; returns its error.

    Raises:
        Refused: There is no cluster.
    """
    import ray  # noqa: PLC0415 - slow to import, rarely wanted
    from joblib import register_parallel_backend  # noqa: PLC0415 - likewise
    from ray.exceptions import RayError  # noqa: PLC0415 - likewise
    from ray.util.joblib.ray_backend import RayBackend  # noqa: PLC0415 - likewise

    class Yielding(RayBackend):
        """Ray's backend, which can yield results one by one, though it does not say so."""

        supports_return_generator = True

    register_parallel_backend("ray", Yielding)
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        os.environ.setdefault(name, "0")  # sends no statistics, and prints no advice
    host, colon, port = address.rpartition(":")
    try:
        if colon and "/" not in host:  # where nobody listens, Ray would wait for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(
            address, log_to_driver=False, logging_level=logging.ERROR, ignore_reinit_error=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise Refused(f"--ray {address}: no cluster answers there") from error
    return RayError


# --- In another process ----------------------------------------------------------------------


def _do(news: Path, owner: int | None, name: str, job: Job) -> tuple[str, list[Row]]:
    """Does a job.

    Progress is written to ``news``, if this machine has that folder. ``owner`` is the process that
    waits for the job and started this one; None on a cluster.
    """
    told = -_PAUSE
    if owner is not None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)

    def report(done: int, total: int) -> None:
        nonlocal told
        if owner is not None and os.getppid() != owner:
            os._exit(1)  # nobody waits any more, and there is nobody to raise an error to
        if done == total or time.monotonic() >= told + _PAUSE:
            told = time.monotonic()
            if news.is_dir():
                (news / name).write_text(f"{done} {total}")

    with _one_thread():
        return name, job(report)
