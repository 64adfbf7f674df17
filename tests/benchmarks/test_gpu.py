"""The script for GPUs, tried on the CPU at tiny sizes."""

import json
import math
import subprocess
import sys

import pytest
import torch

from benchmarks.gpu import PARTS, gap, measure
from tests.test_house import ROOT

pytestmark = pytest.mark.full


def test_a_gap_is_the_largest_difference_of_all_numbers():
    x = {"a": torch.zeros(2, 3), "b": torch.tensor([1.0, 2.0])}
    assert gap(x, x) == 0
    assert gap(x | {"b": torch.tensor([1.0, 2.25])}, x) == 0.25
    assert gap(x | {"a": torch.full((2, 3), math.nan)}, x) == gap({}, x) == math.inf


def test_all_parts_run_at_tiny_sizes(tmp_path):
    for part in PARTS[:2]:
        assert measure(part, "cpu", small=True, file=tmp_path / f"{part}.json")
    command = [sys.executable, "-m", "benchmarks.gpu", "--small", "--device", "cpu"]
    command += ["--part", ",".join(PARTS[2:]), "--out", str(tmp_path)]  # a process for each
    subprocess.run(command, cwd=ROOT, check=True)
    found = {part: json.loads((tmp_path / f"{part}.json").read_text())["rows"] for part in PARTS}
    pairs = {(row["network"], row["method"]) for row in found["parity"]}
    methods = {"fedavg", "ditto", "local-moml"}
    assert pairs == {(name, method) for name in ("mlp", "cnn", "resnet") for method in methods}
    assert all(0 < row["models"] < 1e-4 and row["scores"] < 1e-4 for row in found["parity"])
    # Two methods with exact Hessians and without, two that have none; on three federations.
    assert [len(found[part]) for part in PARTS] == [9, 18, 2, 2]
    timed = [row for part in PARTS[1:] for row in found[part]]
    assert all(math.isfinite(row["ms"]) and row["ms"] > 0 for row in timed)
    assert [(row["clients"], row["a round"]) for row in found["many"]] == [(400, 20), (40, 5)]
    assert {(row["clients"], row["a round"]) for row in found["resnet"]} == {(4, 3)}
