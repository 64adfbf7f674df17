"""Cores and memory that this process may use."""

import ctypes
import functools
import gc
import logging
import math
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

import psutil

from engram.settings.errors import DataError, Refused

_log = logging.getLogger("flwr.engram")
_GROUPS = Path("/proc/self/cgroup")
_MOUNTED = Path("/sys/fs/cgroup")
_OWN = 2**28  # bytes that a run takes besides its rows: where they are short, libraries abort
_LARGE = 2**24  # bytes that are worth a search for what can be freed
_SMALL = 2**20  # bytes that are not worth the files that say what is free
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
_PDEATHSIG = 1  # option of Linux's prctl
_FEWER = "use fewer rows, or a larger machine"


def cores() -> int:
    """Returns the number of cores that this process may use.

    These are the cores of its affinity (taskset, SLURM, a cpuset), but at most the smallest quota
    of its control groups and of those above them, in either version; 1.5 cores count as 2.
    """
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _least("cpu", _quota)
    return here if quota > here else max(1, math.ceil(quota))


@functools.cache  # said once
def check_threads(threads: int) -> None:
    """Warns if torch is to have more threads than this process has cores."""
    if threads > cores():
        _log.warning("cpu-threads=%d share the cores that may be used, %d", threads, cores())


def available(device: str) -> int:
    """Returns the free bytes of memory for this process on a device."""
    if device != "cpu":
        import torch  # noqa: PLC0415 - which a node's main process does not load

        return torch.cuda.mem_get_info(device)[0]
    # A container may have less than the machine.
    free = int(min(psutil.virtual_memory().available, max(0, _least("memory", _left))))
    most = resource.getrlimit(resource.RLIMIT_AS)[0]  # ulimit -v
    if most != resource.RLIM_INFINITY:
        free = min(free, max(0, most - psutil.Process().memory_info().vms))
    return free


def keep_freed(size: int, largest: int) -> None:
    """Bounds the freed memory that this process keeps to use it again; needs glibc.

    By default that keeps ever more at its heap's end, and of blocks that are ever larger.

    Args:
        size: Bytes that are kept at most.
        largest: Bytes of a block; larger ones get pages of their own, and give them back.
    """
    with suppress(AttributeError, OSError, TypeError):  # there is no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, largest)
        mallopt(_TRIM_THRESHOLD, size)


def let_go(size: int) -> None:
    """Frees messages of so many bytes that nobody refers to any more, if they are large.

    Flower's records and their views refer to each other, so that they stay until Python looks for
    cycles, which it does by counting objects, however large these are.
    """
    if size > _LARGE:
        gc.collect()


def end_with_parent() -> None:
    """Has the kernel kill this process once the thread that started it has ended; needs Linux."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)


def check_room(
    what: str, size: int, advice: str, *, most: int = 0, kind: type[Refused] = Refused
) -> None:
    """Checks that ``size`` bytes fit into memory before they are allocated for ``what``.

    What takes less than a MiB does, unless ``most`` is less.

    Raises:
        Refused: If it needs more than is free, or than ``most`` bytes if that is not 0; of type
            ``kind``, and ending with ``advice``.
    """
    if size < min(_SMALL, most or _SMALL):
        return
    free = available("cpu")
    limit, are = (most, "allowed (memory-budget)") if 0 < most < free else (free, "free")
    if size > limit:
        needed, there = (f"{count / 2**30:.3g} GiB" for count in (size, limit))
        raise kind(f"{what} needs {needed}, and {there} are {are}: {advice}")


def check_rows(what: str, size: int) -> None:
    """Checks that rows fit into memory, and a run beside them if they take as much.

    Raises:
        DataError: If they do not.
    """
    check_room(what, size + _OWN * (size > _OWN), _FEWER, kind=DataError)


@contextmanager
def rows_in_memory(what: str) -> Iterator[None]:
    """Refuses rows that turn out not to fit into memory while they are read.

    Raises:
        DataError: In place of Python's or numpy's error.
    """
    try:
        yield
    except MemoryError as error:
        free = f"{available('cpu') / 2**30:.3g} GiB that are free"
        raise DataError(f"{what} needs more than the {free}: {_FEWER}") from error


# --- Control groups ----------------------------------------------------------------------------


def _least(controller: str, read: Callable[[Path], float]) -> float:
    found = math.inf
    for group in _groups(controller):
        with suppress(OSError, ValueError):
            found = min(found, read(group))
    return found


def _groups(controller: str) -> Iterator[Path]:
    """Yields the folders of this process's control groups, and of all groups above them.

    Where a container sees its own group as the root, only the last one exists.
    """
    with suppress(OSError):
        for line in _GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or controller in controllers.split(","):
                root = _MOUNTED / controller if controllers else _MOUNTED
                group = PurePosixPath(path.lstrip("/"))
                yield from (root / each for each in (group, *group.parents))


def _quota(group: Path) -> float:
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except FileNotFoundError:  # version 1
        quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    return math.inf if quota.strip() in ("max", "-1") else int(quota) / int(period)


def _left(group: Path) -> float:
    """Reads how many bytes a group has left, beside page cache that the kernel gives up."""
    limit, used, cache = "memory.max", "memory.current", "inactive_file"
    if not (group / limit).exists():  # version 1
        limit, used, cache = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    most = (group / limit).read_text().strip()
    if most == "max":
        return math.inf
    fields = (group / "memory.stat").read_text().split()
    reclaimable = int(fields[fields.index(cache) + 1])
    return int(most) - int((group / used).read_text()) + reclaimable
