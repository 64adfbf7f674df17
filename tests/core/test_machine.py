"""Cores and memory that a process may use, by control groups as different machines have them."""

import os
import shutil
import subprocess
import sys

import pytest

from engram.core import machine
from engram.settings.errors import Refused
from tests.samples import entry

ALL = 8  # cores of the affinity
V1 = "12:memory:{0}\n4:cpuset:/\n3:cpu,cpuacct:{0}\n1:name=systemd:/user.slice\n"


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A machine of eight cores, by a process's groups and the files of groups."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(ALL)))
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_MOUNTED", tmp_path / "mounted")

    def make(groups, files):
        shutil.rmtree(tmp_path / "mounted", ignore_errors=True)
        (tmp_path / "cgroup").write_text(groups)
        for name, text in files.items():
            path = tmp_path / "mounted" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return make


def v1(folder, quota, period=100_000):
    return {
        f"cpu/{folder}/cpu.cfs_quota_us": f"{quota}\n",
        f"cpu/{folder}/cpu.cfs_period_us": f"{period}\n",
    }


QUOTAS = [
    ("", {}, 8),
    ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
    ("0::/\n", {"cpu.max": "300000 100000\n"}, 3),
    ("0::/\n", {"cpu.max": "20000 50000\n"}, 1),  # 0.4 of a core
    ("0::/\n", {"cpu.max": "250000 100000\n"}, 3),  # 2.5 cores keep three busy
    ("0::/\n", {"cpu.max": "1600000 100000\n"}, 8),  # more than there are
    # Nested: each group is bound by those above it.
    ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000"}, 2),
    ("0::/a/b\n", {"a/b/cpu.max": "100000 50000", "a/cpu.max": "400000 100000"}, 2),
    ("0::/a/b\n", {"a/b/c/cpu.max": "100000 100000", "z/cpu.max": "100000 100000"}, 8),
    # A container that sees its own group as the root, and one that is named from outside.
    ("0::/docker/4f\n", {"cpu.max": "400000 100000"}, 4),
    ("0::/../4f\n", {"cpu.max": "400000 100000"}, 4),
    (V1.format("/"), v1("", -1), 8),
    (V1.format("/slurm/job"), v1("slurm/job", 150_000) | v1("slurm", -1) | v1("", -1), 2),
    (V1.format("/slurm/job"), v1("slurm/job", -1) | v1("slurm", 50_000, 25_000), 2),
    (V1.format("/docker/4f"), v1("", 500_000), 5),
    # Both versions are mounted; the first one has the processor.
    (V1.format("/a") + "0::/a\n", v1("a", 300_000) | {"unified/a/cgroup.procs": ""}, 3),
    ("0::/\n", {"cpu.max": "a damaged file"}, 8),
]


def test_cores_are_those_of_the_affinity_and_the_least_quota(host):
    for groups, files, usable in QUOTAS:
        with entry(groups, files, usable):
            host(groups, files)
            assert machine.cores() == usable


def test_a_process_that_is_pinned_has_its_own_cores(host, monkeypatch):
    host("0::/\n", {"cpu.max": "300000 100000"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {5, 7})
    assert machine.cores() == 2


def test_free_memory_is_what_the_groups_leave_and_files_that_the_kernel_gives_up(host):
    own = "memory.max", "memory.current", "inactive_file"
    first = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    for groups, folder, (limit, used, cache) in [
        ("0::/a/b\n", "a", own),
        ("0::/a\n", ".", own),
        (V1.format("/a/b"), "memory/a", first),
    ]:
        with entry(groups, folder):
            texts = {limit: "4194304\n", used: "2097152\n", "memory.stat": f"a 1\n{cache} 4096\n"}
            host(groups, {f"{folder}/{name}": text for name, text in texts.items()})
            assert machine.available("cpu") == 2**22 - 2**21 + 4096
    host("0::/a\n", {"memory.max": "max\n"})
    assert machine.available("cpu") > 2**22


def test_a_mib_is_refused_where_it_is_not_allowed_alone(monkeypatch):
    monkeypatch.setattr(machine, "available", lambda device: 1000)
    machine.check_room("a row", 1001, "take less")
    with pytest.raises(Refused, match=r"a row needs .* are allowed \(memory-budget\): take less"):
        machine.check_room("a row", 901, "take less", most=900)
    with pytest.raises(Refused, match=r"a model needs .* are free: take less"):
        machine.check_room("a model", 2**20, "take less")


def test_more_threads_than_cores_are_told_once(host, warnings_of_engram):
    host("0::/\n", {"cpu.max": "300000 100000"})
    machine.check_threads.cache_clear()
    for threads in (3, 4, 4):
        machine.check_threads(threads)
    machine.check_threads.cache_clear()
    told = ["cpu-threads=4 share the cores that may be used, 3"]
    assert [record.getMessage() for record in warnings_of_engram.records] == told


ENDS = """
import subprocess, sys, time
if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, __file__, "child"])
else:
    from engram.core.machine import end_with_parent
    end_with_parent()
    print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux's kernel does it")
def test_a_process_ends_with_its_parent_however_that_ends(tmp_path):
    (tmp_path / "ends.py").write_text(ENDS)
    words = [sys.executable, str(tmp_path / "ends.py")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.kill()
        assert process.stdout.read() == ""  # closed by both
