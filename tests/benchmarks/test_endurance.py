"""A federation measures itself over a few rounds; how much it takes is not for a test."""

import math
import mmap
import subprocess
import sys
import tempfile

import psutil
import pytest

from benchmarks.endurance import Size, endure, growing, measure, milestones


def _pages(mebibytes):
    return mmap.mmap(-1, mebibytes * 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def test_milestones_are_early_halfway_and_the_end():
    assert milestones(1000) == [100, 500, 1000]
    assert milestones(1) == [1]


def test_a_process_is_measured_with_its_folder(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "a").write_bytes(bytes(2**20))
    (tmp_path / "inner" / "b").write_bytes(bytes(2**19))
    before = measure([psutil.Process()], tmp_path)
    assert before.disk == 1.5
    # A mapping: malloc may serve a block from pages that the process has freed and still holds.
    with tempfile.TemporaryFile(), tempfile.TemporaryFile(), _pages(64) as block:
        for page in range(0, len(block), mmap.PAGESIZE):
            block[page] = 1
        after = measure([psutil.Process()], tmp_path)
    assert after.descriptors == before.descriptors + 2
    assert after.memory == pytest.approx(before.memory + 64, abs=16)


def test_a_process_that_has_ended_takes_nothing(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        seen = psutil.Process(process.pid)
        process.communicate(b"\n")
    assert measure([seen], tmp_path) == Size(0, 0, 0)


def test_descriptors_that_are_not_given_back_are_found():
    few, many = Size(90.0, 20, 1.0), Size(90.0, 29, 1.0)
    found = {100: {"a": few, "b": few}, 500: {"a": few, "b": few}, 1000: {"a": few, "b": many}}
    assert growing(found) == ["b"]


@pytest.mark.processes
def test_a_federation_is_measured_while_it_runs(tmp_path):
    found = endure(tmp_path, 40)
    assert list(found) == [4, 20, 40]
    found[40].pop("coordinator", None)  # it ends with the last round
    for sizes in found.values():
        assert sizes.keys() >= {"superlink", "client-0", "client-1", "client-2"}
        assert all(math.isfinite(size.memory) for size in sizes.values())
        assert all(size.memory > 10 and size.descriptors > 3 for size in sizes.values())
    assert found[4]["coordinator"].disk > 0 < found[20]["coordinator"].disk
