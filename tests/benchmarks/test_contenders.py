"""Contenders that need no environment of peers, and what is said of those that do."""

import pytest
import torch

from benchmarks import contenders, plain
from benchmarks.contenders import CASES, METHODS, SYSTEMS, Outcome
from benchmarks.module_peers import plain_torch, read_task
from benchmarks.networks import OWN, WORKS
from benchmarks.peers import write_round
from benchmarks.workloads import Platform

MLP, CNN = WORKS


class Stopped(Exception):
    """A round is over."""


class OneRound:
    """Turns of a peer, of which there is one."""

    def begin(self):
        pass

    def end_round(self, model):
        self.model = model()
        raise Stopped


@pytest.fixture
def small(monkeypatch):
    """Lets few clients take few steps."""
    for name, case in CASES.items():
        for cases in (CASES, WORKS if name in WORKS else OWN):
            monkeypatch.setitem(cases, name, case._replace(clients=3, steps=2))
    monkeypatch.setattr(contenders, "cores", lambda: 1)
    monkeypatch.setattr(contenders, "_WARM_UP", 1)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("work", "method"),
    [
        *((MLP, method) for method in METHODS),
        *((CNN, "ditto"), ("cnn 8-16", "fedavg")),
        pytest.param("lstm 2x128", "fedavg", marks=pytest.mark.full),
    ],
)
def test_a_plain_loop_and_engram_train_the_same_model(work, method, tmp_path):
    e, data = contenders.experiment(work, method), contenders.federation(work)
    write_round(e, data, CASES[work], tmp_path)
    task, turns = read_task(work, tmp_path, method), OneRound()
    platform = Platform(e, data)
    platform.round(1)
    with pytest.raises(Stopped):
        plain_torch(task, turns)
    for leaf, ours in zip(turns.model.values(), platform.model.values(), strict=True):
        torch.testing.assert_close(ours, leaf, rtol=0, atol=1e-6)
    moved = max((leaf - task.start[name]).abs().max() for name, leaf in turns.model.items())
    assert moved > 1e-4  # a hundred times the tolerance


@pytest.mark.usefixtures("small")
def test_a_pass_goes_over_the_first_batches_of_steps(tmp_path):
    e, data = contenders.experiment(MLP, "per-fedavg"), contenders.federation(MLP)
    write_round(e, data, WORKS[MLP], tmp_path)
    task = read_task(MLP, tmp_path, "per-fedavg")
    assert task.y.shape == (3, 2, 2, 5)  # clients, steps, batches, rows
    for client, (x, y) in enumerate(task.rows):
        assert torch.equal(y, torch.cat([task.y[client, 0, 0], task.y[client, 1, 0]]))
        assert torch.equal(x[5:], task.x[client, 1, 0])


def test_a_plain_method_that_is_not_there_is_no_other():
    with pytest.raises(ValueError, match=r"method must be fedavg, .*, got 'fedprox'"):
        plain.train("fedprox", torch.nn.Linear(1, 1), [])


@pytest.mark.full
@pytest.mark.usefixtures("small")
def test_without_an_environment_of_peers_there_is_the_plain_loop():
    outcome = contenders.race(MLP, "fedavg", 1, "", None, 1)
    assert outcome.ms.keys() == {"Engram", "Engram, local-epochs=1", "plain PyTorch"}
    assert all(ms > 0 for ms, _ in outcome.ms.values())
    assert outcome.ms["plain PyTorch"][1] == "1 thread"
    assert outcome.apart["Engram"] < 1e-5
    others = {"FedJAX", "pfl-research", "Flower", "fluke"}
    assert outcome.notes == dict.fromkeys(others, "--peers names no environment")


def test_every_system_that_has_a_method_is_started(tmp_path):
    for method in METHODS:
        peers = {peer for peer, _ in contenders.ways(MLP, method, tmp_path, tmp_path, 2)}
        having = {name for name, methods in SYSTEMS.items() if method in methods}
        assert peers == having - {"Engram", "Engram, local-epochs=1"}


def test_the_table_has_whole_names_and_reasons(capsys):
    reason = "No module named 'fluke', which " + "is long " * 40
    ditto = Outcome({"Engram": (12.34, "1 core"), "PFLlib": (1234.5, "2 threads")}, {}, {})
    fedavg = ditto._replace(apart={"Engram": 2e-7}, notes={"fluke": reason})
    contenders.show(MLP, {"fedavg": fedavg, "ditto": ditto})
    times, distances = capsys.readouterr().out.split("distance from plain PyTorch")
    for name in SYSTEMS:
        assert f"| {name} " in times
        assert f"| {name} " in distances
    rows = {line.split("|")[1].strip(): line for line in times.splitlines() if line.count("|") > 2}
    assert "12.3 (1 core)" in rows["Engram"]
    assert "1234 (2 threads)" in rows["PFLlib"]
    assert [cell.strip() for cell in rows["FedJAX"].split("|")[2:4]] == ["left out", "none"]
    assert "2e-07" in distances
    assert f"fluke is left out of fedavg: {reason.strip()}" in distances
