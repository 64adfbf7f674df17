"""How many clients are trained at once: as many as fit into the memory that there is."""

from federation.errors import Refused
from federation.machine import available

__all__ = ["block_size"]

_SHARE = 4  # a process takes this part of what is free; others may be training beside it


def block_size(each: int, budget: int, *, device: str) -> int:
    """Returns how many clients to train at once.

    Args:
        each: Bytes that one needs.
        budget: Bytes that all may take, as far as they are free: it comes with the run, from
            another machine. 0: a quarter of what is free, or one client's.
        device: Where.

    Raises:
        Refused: Not even one fits into the budget, or into what is free.
    """
    free = available(device)
    limit = min(budget, free) if budget else free
    if each > limit:
        raise Refused(
            f"memory-budget: training one client takes about {each / 2**10:.0f} KiB, but "
            f"{limit / 2**10:.0f} KiB are {'allowed' if limit < free else 'free'}"
        )
    return limit // each if budget else max(1, limit // _SHARE // each)
