"""The machine's free memory, and refusals of what does not fit into it."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from federation.errors import DataError, Refused

__all__ = ["available", "check_room", "check_rows", "rows_in_memory"]

_CGROUP = Path("/sys/fs/cgroup")
_OWN = 2**28  # bytes that a run takes besides its rows: where they are short, libraries abort
_FEWER = "use fewer rows, or a larger machine"


def available(device: str) -> int:
    """Returns how many bytes of memory are free for this process on a device."""
    if device != "cpu":
        import torch  # noqa: PLC0415 - which a node's main process does not load

        return torch.cuda.mem_get_info(device)[0]
    free: int = psutil.virtual_memory().available
    try:  # a container may have less than the machine
        limit = (_CGROUP / "memory.max").read_text().strip()
        if limit != "max":
            used = int((_CGROUP / "memory.current").read_text())
            fields = (_CGROUP / "memory.stat").read_text().split()
            used -= int(fields[fields.index("inactive_file") + 1])  # reclaimable page cache
            free = min(free, max(0, int(limit) - used))
    except (OSError, ValueError):
        pass
    most = resource.getrlimit(resource.RLIMIT_AS)[0]  # ulimit -v
    if most != resource.RLIM_INFINITY:
        free = min(free, max(0, most - psutil.Process().memory_info().vms))
    return free


def check_room(
    what: str, size: int, advice: str, *, most: int = 0, kind: type[Refused] = Refused
) -> None:
    """Checks that ``what``, of at least ``size`` bytes, fits into memory before allocating it.

    Raises:
        Refused: If it needs more than is free, or than ``most`` bytes if that is not 0; of type
            ``kind``, and ending with ``advice``.
    """
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
        free = available("cpu") / 2**30
        raise DataError(
            f"{what} needs more than the {free:.3g} GiB that are free: {_FEWER}"
        ) from error
