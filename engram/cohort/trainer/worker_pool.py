"""Threads and memory of a process that trains."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import torch

from engram.core.machine import keep_freed
from engram.core.process_modes import Shared, on_threads

_KEPT: Final = 2**28  # free bytes at the heap's end that a process keeps
_MAPPED: Final = 2**25  # larger blocks get pages of their own; glibc allows no larger value


def training_from_now_on(threads: int) -> None:
    """Sets a process up that does nothing but train: on so many threads, keeping freed memory."""
    torch.set_num_threads(threads)
    keep_freed(_KEPT, _MAPPED)


@contextmanager
def training(threads: int) -> Iterator[None]:
    """Context in which clients are trained: on so many threads, keeping freed memory."""
    with on_threads(threads), _KEEPING():
        yield


def others_train() -> bool:
    """Returns whether this process trains clients in several threads at once."""
    return _KEEPING.inside > 1


def threads_of_grpc() -> bool:
    """Returns whether gRPC has threads in this process, as far as Linux says."""
    names = []
    for each in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # the thread has ended
            names.append(each.read_text())
    return any(name.startswith(("grpc_", "event_engine")) for name in names)


@contextmanager
def _keeping() -> Iterator[None]:
    """Context in which freed memory is kept; then up to glibc's own limit for such large blocks.

    By default glibc returns it to the kernel at once, and the next step's tensors get pages that
    the kernel clears first. As measured in benchmarks/NOTES.md, that takes up to a fourth of the
    time of a recurrent network.
    """
    keep_freed(_KEPT, _MAPPED)
    try:
        yield
    finally:
        keep_freed(2 * _MAPPED, _MAPPED)


_KEEPING: Final = Shared(_keeping)
