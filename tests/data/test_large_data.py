"""Federations that are larger than memory: only the rows that are drawn are read."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.processes

SETTINGS = {"method": "fedavg", "model": "linear", "partition": "natural", "num_clients": 10}
SETTINGS |= {"clients_per_round": 4, "num_rounds": 3, "local_steps": 4, "batch_size": 4}
SETTINGS |= {"eval_every": 3, "test_fraction": 0.02, "validation_fraction": 0.02, "progress": False}
SCRIPT = """
import json, resource, sys
import engram, numpy as np
from engram.data.readers.in_memory import hold

folder, small, out, settings, limit = sys.argv[1:]
settings, limit = json.loads(settings), int(limit)

def results(dataset, out):
    run = engram.simulate(dataset=dataset, out=out, **settings)
    found = run.metrics.drop(columns="ms").iloc[-1].map(str).to_dict()
    return [found, {name: leaf.sum().item() for name, leaf in run.model.items()}]

def arrays():
    return {name: np.load(f"{folder}/{name}.npy") for name in ("x", "y", "task")}

if limit < 2**30:  # beyond what a run takes itself
    results(f"npy:{small}", f"{out}-small")
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    limit += int(status["VmData"].split()[0]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
found = [results(f"npy:{folder}", out)]
if small:
    try:
        arrays()
    except MemoryError:
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)
        found.append(results(hold(arrays()), f"{out}-whole"))
print(json.dumps(found))
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


def run(folder, limit, small="", **settings):
    """Runs in a process that may take so much memory; below 2**30 bytes, so much more."""
    arguments = [folder, small, folder.parent / "run", json.dumps(SETTINGS | settings), limit]
    command = [sys.executable, "-c", SCRIPT, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_ten_times_the_memory_limit_gives_the_numbers_of_memory(tmp_path):
    size, width = 320 * 2**20, 12_000
    write(tmp_path / "small", 2500, width)
    write(tmp_path / "large", size // width, width)
    few = {"test_fraction": 0.005, "validation_fraction": 0.005}
    drawn, whole = run(tmp_path / "large", size // 10, tmp_path / "small", **few)
    assert drawn == whole


def test_eight_gigabytes_train_within_two(tmp_path):
    # More bytes than 32 bits count.
    write(tmp_path / "large", 8 * 2**30 // 48_000, 48_000)
    few = {"test_fraction": 0.002, "validation_fraction": 0.002}
    [(found, _)] = run(tmp_path / "large", 2 * 2**30, **few)
    assert 0 <= float(found["loss"]) < 1


PEAK = """
import sys
from pathlib import Path
import numpy as np, pandas as pd
from engram.data.schema.declared import declare
from engram.data.tables.raw_tables import of_file
from engram.settings.data import DataSettings

def memory(what):
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status[what].split()[0])

declared = declare(DataSettings.model_validate({"target-column": "y"}))

def read(path):
    return pd.read_csv(path) if sys.argv[1] == "pandas" else of_file(Path(path), declared)["x"]

read(sys.argv[3])  # a small one, so that code is loaded
open("/proc/self/clear_refs", "w").write("5")  # the peak is counted from here
base = memory("VmRSS")
found = read(sys.argv[2])
print(memory("VmHWM") - base, repr(float(found.sum(axis=None))))
assert "torch" not in sys.modules  # which takes more than either reader
"""


def test_a_wide_table_is_read_with_its_schema_in_the_memory_of_pandas(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(300, 12_000)).round(4)).add_prefix("gene")
    frame.assign(y=0).to_csv(path := tmp_path / "wide.csv", index=False)
    frame.iloc[:, :3].assign(y=0).to_csv(small := tmp_path / "small.csv", index=False)
    commands = (
        [sys.executable, "-c", PEAK, how, str(path), str(small)] for how in ("pandas", "schema")
    )
    done = [subprocess.run(c, capture_output=True, text=True, check=True) for c in commands]
    (most, right), (peak, found) = (each.stdout.split() for each in done)
    assert float(found) == pytest.approx(float(right), rel=1e-9)
    assert int(peak) <= int(most)
