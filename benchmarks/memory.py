"""Peak memory of a part of a run, in MiB; on CPUs as counted by Linux with glibc."""

import ctypes
from pathlib import Path

import torch


def forget_peak(device: str) -> float:
    """Starts a new measurement; returns the memory in use now."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device) / 2**20
    # Freed memory that the allocator keeps would hide later allocations.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # Linux: forgets VmHWM
    return _status("VmRSS")


def peak(device: str) -> float:
    """Returns the most memory in use since then."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return _status("VmHWM")


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(field))
    return int(line.split()[1]) / 1024
