"""Federations that are larger than memory: only the rows that are drawn are read."""

import json
import subprocess
import sys

import numpy as np
import pytest

SETTINGS = {
    "method": "fedavg",
    "model": "linear",
    "partition": "natural",
    "num_clients": 10,
    "clients_per_round": 4,
    "num_rounds": 3,
    "local_steps": 4,
    "batch_size": 4,
    "eval_every": 3,
    "adapt_shots": 1,
    "test_fraction": 0.02,
    "progress": False,
}
SCRIPT = """
import json, resource, sys
import engram, numpy as np
from federation.data.in_memory import hold

folder, small, out, settings, room, whole = sys.argv[1:]
settings = json.loads(settings)
own = {**settings, "test_fraction": 0.05}
engram.simulate(dataset=f"npy:{small}", out=f"{out}-small", **own)  # what a run takes itself
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
now = int(status["VmData"].split()[0]) * 1024
if room != "0":  # that many bytes more, or in all where there is a minus
    resource.setrlimit(resource.RLIMIT_DATA, (max(now + int(room), -int(room)),) * 2)
names = ("x", "y", "task")
held = {name: np.load(f"{folder}/{name}.npy") for name in names} if whole == "whole" else {}
dataset = hold(held) if held else f"npy:{folder}"
run = engram.simulate(dataset=dataset, out=out, **settings)
found = run.metrics.drop(columns="ms").iloc[-1].map(str).to_dict()
print(json.dumps([found, {name: leaf.sum().item() for name, leaf in run.model.items()}]))
"""


def write(folder, rows, width):
    """Writes a sparse file of rows, of which a thousand at most hold anything."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, rows)
    header = {"descr": "|u1", "fortran_order": False, "shape": (rows, width)}
    with (folder / "x.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        start = file.tell()
        file.truncate(start + rows * width)
        for row in rng.integers(0, rows, 1000):
            file.seek(start + row * width)
            file.write(rng.integers(0, 100 + 100 * y[row], 50, dtype=np.uint8).tobytes())
    np.save(folder / "y.npy", y)
    np.save(folder / "task.npy", rng.integers(0, 10, rows))


def run(folder, room=0, whole="", **settings):
    """Runs in a process that may take so much more memory, or in all as much as below zero."""
    arguments = [folder, folder.parent / "small", folder.parent / f"run{room}{whole}"]
    settings = json.dumps(SETTINGS | settings)
    command = [sys.executable, "-c", SCRIPT, *map(str, arguments), settings, str(room), whole]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "small", 1000, 48_000)
    return tmp_path / "large"


def test_ten_times_the_memory_limit_gives_the_numbers_of_memory(folder):
    size = 640 * 2**20
    write(folder, size // 48_000, 48_000)
    assert run(folder, room=size // 10) == run(folder, whole="whole")
    with pytest.raises(AssertionError, match=r"MemoryError|alloc"):
        run(folder, room=size // 10, whole="whole")


def test_twenty_gigabytes_train_within_two(folder):
    write(folder, 20 * 2**30 // 48_000, 48_000)
    found, _ = run(folder, room=-2 * 2**30, test_fraction=0.002)
    assert 0 <= float(found["loss"]) < 1
