"""Number of clients that are trained at once, by the memory available."""

from federation.errors import Refused
from federation.machine import available

__all__ = ["block_size"]

_SHARE = 4  # a process takes a fourth of the free memory: others may be training beside it


def block_size(each: int, budget: int, *, device: str) -> int:
    """Returns how many clients to train at once.

    Args:
        each: Bytes that one client needs.
        budget: Most bytes that all clients may take together, or 0: a quarter of the free memory,
            but at least one client's. It comes with the run, from another machine, so never more
            is taken than is free here.
        device: Whose memory is used: that of the CPU, or of a GPU.

    Raises:
        Refused: Not even one client fits into the budget, or into the free memory.
    """
    free = available(device)
    limit = min(budget, free) if budget else free
    if each > limit:
        raise Refused(
            f"memory-budget: training one client takes about {each / 2**10:.0f} KiB, but "
            f"{limit / 2**10:.0f} KiB are {'allowed' if limit < free else 'free'}"
        )
    return limit // each if budget else max(1, limit // _SHARE // each)
