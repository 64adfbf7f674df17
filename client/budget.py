"""How many clients are trained at once: as many as fit into the memory that there is."""

from pathlib import Path

import psutil

from federation.errors import Refused

__all__ = ["available", "block_size"]

_SHARE = 4  # a process takes this part of what is free; others may be training beside it
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
    return free


def block_size(each: int, budget: int, *, device: str) -> int:
    """Returns how many clients to train at once.

    Args:
        each: Bytes that one needs.
        budget: Bytes that all may take; 0: a quarter of what is free, or one client's.
        device: Where.

    Raises:
        Refused: Not even one fits into the budget, or into what is free.
    """
    limit = budget or available(device)
    if each > limit:
        raise Refused(
            f"memory-budget: training one client takes about {each / 2**10:.0f} KiB, but "
            f"{limit / 2**10:.0f} KiB are {'allowed' if budget else 'free'}"
        )
    return limit // each if budget else max(1, limit // _SHARE // each)
