"""Peak memory of a part of a run on CPUs, in MiB, as counted by Linux with glibc."""

import ctypes
from pathlib import Path


def forget_peak() -> float:
    """Starts a new measurement; returns the memory in use now."""
    # Freed memory that the allocator keeps would hide later allocations.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # Linux: forgets VmHWM
    return _status("VmRSS")


def peak() -> float:
    """Returns the most memory in use since then."""
    return _status("VmHWM")


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(field))
    return int(line.split()[1]) / 1024
