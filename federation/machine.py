"""What the machine has to spare."""

import resource
from pathlib import Path

import psutil

from federation.errors import Refused

_CGROUP = Path("/sys/fs/cgroup")


def available(device: str) -> int:
    """Returns how many bytes are free, now."""
    if device != "cpu":
        import torch  # noqa: PLC0415 - which a node's main process does not load

        return torch.cuda.mem_get_info(device)[0]
    free: int = psutil.virtual_memory().available
    try:  # a container may have less than the machine
        limit = (_CGROUP / "memory.max").read_text().strip()
        if limit != "max":
            used = int((_CGROUP / "memory.current").read_text())
            fields = (_CGROUP / "memory.stat").read_text().split()
            used -= int(fields[fields.index("inactive_file") + 1])  # files, to be had back at once
            free = min(free, max(0, int(limit) - used))
    except (OSError, ValueError):
        pass
    most = resource.getrlimit(resource.RLIMIT_AS)[0]  # and so may a process: ulimit -v
    if most != resource.RLIM_INFINITY:
        free = min(free, max(0, most - psutil.Process().memory_info().vms))
    return free


def check_room(what: str, size: int, advice: str, *, kind: type[Refused] = Refused) -> None:
    """Refuses what does not fit into memory, before any of it is made.

    ``what`` needs so many bytes at least; the error is of this kind, and ends with the advice.

    Raises:
        Refused: It needs more than is free.
    """
    free = available("cpu")
    if size > free:
        raise kind(
            f"{what} needs {size / 2**30:.3g} GiB, and {free / 2**30:.3g} GiB are free: {advice}"
        )
