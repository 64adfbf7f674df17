"""The benchmarks run, and what they print is numbers. How large these are is not for a test."""

import itertools
import math
import runpy
import sys

import numpy as np
import pytest
import torch

from benchmarks import flower_block, meta
from benchmarks.chaos import plan
from benchmarks.scale import time_federations
from benchmarks.workloads import WORKLOADS, Platform, experiment
from engram.data.federated import FederatedData, Split
from engram.meta.studies.sinewave import Sinewave
from tests.samples import entry


@pytest.fixture
def benchmark_rounds(monkeypatch):
    """Does in this process what `python -m benchmarks.rounds` does."""

    def call(words):
        monkeypatch.setattr(sys, "argv", ["benchmarks.rounds", *words.split()])
        monkeypatch.delitem(sys.modules, "benchmarks.rounds", raising=False)
        runpy.run_module("benchmarks.rounds", run_name="__main__")

    return call


def test_rounds_prints_each_contender(benchmark_rounds, capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        benchmark_rounds("--workload W1 --method fedavg,local-moml --rounds 1")
    printed = capsys.readouterr().out
    for name in ("fedavg", "local-moml, first-order", "local-moml, exact"):
        assert name in printed


def test_loops_by_hand_take_the_steps_of_the_block():
    begun, data = [*flower_block.network().parameters()], flower_block.batches(5)
    for method in flower_block.METHODS:
        loops = flower_block.by_hand(method, data), flower_block.in_block(method, data)
        for theirs, mine in zip(*loops, strict=True):
            with entry(method):
                torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
        assert any((x - y).abs().max() > 1e-3 for x, y in zip(mine, begun, strict=True))


def test_scale_counts_time_and_memory():
    few, many = time_federations([(40, 5), (400, 5)], rounds=2)
    assert few["ms"] > 0
    assert many["ms"] > 0
    assert math.isfinite(many["registered-mib"] + many["peak-mib"])


class Looked(list):
    """A list that counts how often somebody looks at one of its entries."""

    looks = 0

    def __getitem__(self, at):
        self.looks += 1
        return super().__getitem__(at)

    def __iter__(self):
        self.looks += len(self)
        return super().__iter__()


def test_a_round_looks_at_its_own_clients_alone():
    def looks(clients):
        e = experiment(WORKLOADS["W1"], method="fedavg", num_clients=clients, clients_per_round=5)
        rng = np.random.default_rng(0)
        x = torch.from_numpy(rng.integers(0, 256, (50, 784), dtype=np.uint8))
        y = torch.from_numpy(rng.integers(0, 10, 50))
        rows = Looked(rng.integers(0, 50, (clients, 8)))
        platform = Platform(e, FederatedData(Split(x, y, rows), Split(x, y, rows), 10))
        platform.round(1)
        before = rows.looks
        platform.round(2)
        return rows.looks - before

    assert looks(2000) == looks(20) <= 5 * 5


# --- Chaos ----------------------------------------------------------------------------------


def test_a_plan_of_kills_is_a_function_of_its_seed():
    drawn = plan(50, 30, seed=3)
    assert drawn == plan(50, 30, seed=3) == sorted(drawn)
    assert drawn != plan(50, 30, seed=4)
    clients = {f"client-{client}" for client in range(3)}
    assert {kill.target for kill in drawn} == clients | {"coordinator", "superlink"}
    assert all(0 <= kill.server_round < 30 for kill in drawn)


def test_the_loop_over_tasks_does_what_ours_does():
    start = Sinewave()
    begun = start.layout.pack([start.start(0)])["flat"][0]
    for method, hessian in itertools.product(("maml", "moml-v1"), ("exact", "first-order")):
        mine = meta.ours(method, 1, hessian)(0).w["flat"][0]
        theirs = torch.cat([leaf.detach().flatten() for leaf in meta.loop(method, hessian)(0)])
        with entry(method, hessian):
            torch.testing.assert_close(theirs, mine, rtol=0, atol=1e-6)
            assert (mine - begun).abs().max() > 1e-3  # a thousand times the tolerance


def test_meta_prints_milliseconds():
    rows = meta.time_meta(["maml", "nasa"], turns=1, runs=(1, 2), hessian="first-order")
    found = {(row["method"], row["runs"]) for row in rows}
    assert found == {("maml", 0), ("maml", 1), ("maml", 2), ("nasa", 1), ("nasa", 2)}
    assert all(math.isfinite(row["ms"]) and row["ms"] > 0 for row in rows)
