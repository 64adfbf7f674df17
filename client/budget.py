"""How many clients are trained at once: as many as fit into the memory that there is."""

from pathlib import Path

import psutil
import torch

from federation.errors import Refused

__all__ = ["available", "block_size"]

_SHARE = 4  # a process takes this part of what is free; others may be training beside it
_CGROUP = Path("/sys/fs/cgroup")


def available(device: str) -> int:
    """Returns how many bytes a trainer may use, measured now, if nobody says."""
    if device != "cpu":
        return torch.cuda.mem_get_info(device)[0] // _SHARE * 3
    free: int = psutil.virtual_memory().available
    try:  # a container may have less than the machine
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        free = free if limit == "max" else min(free, int(limit) - used)
    except OSError:
        pass
    return free // _SHARE


def block_size(each: int, budget: int) -> int:
    """Returns how many clients that need ``each`` bytes fit into the budget.

    Raises:
        Refused: Not even one.
    """
    if each > budget:
        raise Refused(
            f"memory-budget: training one client takes about {each / 2**10:.0f} KiB, but "
            f"{budget / 2**10:.0f} KiB are allowed"
        )
    return budget // each
