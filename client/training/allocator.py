"""Tunes the C library's memory allocator for training."""

import ctypes
from contextlib import suppress
from typing import Final

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
_KEPT: Final = 2**28  # free bytes at the heap's end that a process keeps
_MAPPED: Final = 2**25  # larger blocks get pages of their own; glibc allows no larger value


def keep_freed_memory() -> None:
    """Makes this process keep the memory of freed tensors, to use it again for the next ones.

    By default glibc returns it to the kernel at once, and the next step's tensors get pages that
    the kernel clears first. As measured in benchmarks/NOTES.md, that takes up to a fourth of the
    time of a recurrent network. Other C libraries than glibc are not changed.
    """
    with suppress(AttributeError, OSError, TypeError):  # there is no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _MAPPED)
        mallopt(_TRIM_THRESHOLD, _KEPT)
