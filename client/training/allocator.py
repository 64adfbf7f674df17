"""The C library's allocator, as training wants it."""

import ctypes
from contextlib import suppress
from typing import Final

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
_KEPT: Final = 2**28  # bytes at the heap's end that a process keeps
_MAPPED: Final = 2**25  # bytes of a piece that gets pages of its own; the most that glibc takes


def keep_freed_memory() -> None:
    """Has this process keep memory that tensors have left, for the next ones.

    By default glibc gives it back at once, and the next step's tensors are written to pages that
    the kernel clears first: as measured in benchmarks/NOTES.md, up to a fourth of the time of a
    recurrent network. Other C libraries are left as they are.
    """
    with suppress(AttributeError, OSError, TypeError):  # there is no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _MAPPED)
        mallopt(_TRIM_THRESHOLD, _KEPT)
