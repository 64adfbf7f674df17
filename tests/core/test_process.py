"""Threads and memory of a process that trains, in which others compute, too."""

import platform
import subprocess
import sys
import threading

import pytest
import torch

from engram.core.process_modes import on_threads

FAULTS = """
import resource
import torch
from engram.cohort.trainer.worker_pool import training

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        tensors = [torch.empty(2**21).fill_(1.0) for _ in range(8)]  # of 2048 pages each
        del tensors
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with training(1):
    with training(1):  # another one, which ends first
        faults()  # the heap grows
    print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_freed_memory_is_used_again_as_it_is():
    found = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True, timeout=120
    )
    assert int(found.stdout) < 5 * 8 * 2048 / 10


def elsewhere():
    """Returns the number of threads that a thread has which computes for the first time."""
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("first", ["outer", "inner"])
def test_threads_are_a_matter_of_who_trains(first):
    """Of two that train at once, whichever ends first, and of those that begin meanwhile."""
    torch.set_num_threads(3)
    other, inside, leave, seen = on_threads(2), threading.Event(), threading.Event(), []

    def train():
        with other:
            seen.append(torch.get_num_threads())
            inside.set()
            leave.wait(60)
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=train)
    try:
        with on_threads(1):
            thread.start()
            assert inside.wait(60)
            assert (torch.get_num_threads(), elsewhere()) == (1, 3)
            if first == "inner":
                leave.set()
                thread.join()
        assert (torch.get_num_threads(), elsewhere()) == (3, 3)
        leave.set()
        thread.join()
        assert seen == [2, 3]
        assert (torch.get_num_threads(), elsewhere()) == (3, 3)
    finally:
        torch.set_num_threads(1)
