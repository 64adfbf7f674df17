"""The machine's free memory."""

import resource
from pathlib import Path

import psutil

from federation.errors import Refused

_CGROUP = Path("/sys/fs/cgroup")


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


def check_room(what: str, size: int, advice: str, *, kind: type[Refused] = Refused) -> None:
    """Checks that ``what``, of at least ``size`` bytes, fits into memory before allocating it.

    Raises:
        Refused: If it needs more than is free; of type ``kind``, and ending with ``advice``.
    """
    free = available("cpu")
    if size > free:
        raise kind(
            f"{what} needs {size / 2**30:.3g} GiB, and {free / 2**30:.3g} GiB are free: {advice}"
        )
