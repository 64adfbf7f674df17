"""Memory that a tensor has left is there for the next one, without the kernel's help."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
import torch
from client.training.allocator import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        tensors = [torch.empty(2**21).fill_(1.0) for _ in range(8)]  # of 2048 pages each
        del tensors
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
faults()  # the heap grows
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_freed_memory_is_used_again_as_it_is():
    found = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True, timeout=120
    )
    assert int(found.stdout) < 5 * 8 * 2048 / 10
