"""Ends of a run: by `engram stop`, with a verdict of its coordinator, or without one."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from engram.client.disk_memory import DiskStore
from engram.client.hosts.local import LocalHost
from engram.link.run import Status
from engram.link.server.membership import Membership
from engram.runs.run import Run
from engram.runs.writer import RunWriter, Taken
from engram.server import app_start as module
from engram.server import stopping
from engram.server.app_start import opened
from engram.server.run import run as run_on
from engram.server.stopping import stop_run
from engram.settings.errors import Refused, RunStopped
from engram.settings.logs import VERDICT
from engram.simulations.grid import InProcessGrid
from tests.link.server.federations import make
from tests.server import pushed
from tests.support import small, trainer

SERVER = Path("fed/server")


def patient(e, store=None, *, stops=True, hosts=((range(20)),)):
    g = InProcessGrid(LocalHost(trainer(e, store)), hosts)
    membership = Membership(SERVER, 1) if stops else None
    return pushed.patient(g, membership=membership)


@pytest.fixture
def runs(monkeypatch):
    """The runs that are connected to the server."""
    make()
    there = []

    def status(folder):
        assert folder == SERVER.absolute()
        return Status({}, there, {})

    monkeypatch.setattr(stopping, "status", status)
    return there


def test_the_only_run_is_stopped_and_of_several_runs_one_is_named(runs):
    with pytest.raises(Refused, match=r"RUN must be one of the runs that go on: none"):
        stop_run(SERVER)
    runs.append("2")
    (SERVER / "stop-1").touch()
    assert stop_run(SERVER) == "2"
    assert [run for run in (1, 2) if Membership(SERVER, 2).is_stopping(run)] == [2]
    runs.append("3")
    with pytest.raises(Refused, match=r"RUN must be one of the runs that go on: 2, 3"):
        stop_run(SERVER)
    with pytest.raises(Refused, match=r"go on, 2, 3, got '1'"):
        stop_run(SERVER, "1")
    assert stop_run(SERVER, "3") == "3"


def test_a_run_that_is_stopped_keeps_its_last_round_and_goes_on(runs, tmp_path):
    runs.append("1")

    def go(folder, on_round=lambda row: None, stops=False, **more):
        e = small(checkpoint_every=4, **more)
        g = patient(e, DiskStore(tmp_path / f"{folder.name}-memory"), stops=stops)
        return run_on(g, e, folder, engine="flower", on_round=on_round)

    def third(row):
        if row["round"] == 3:
            stop_run(SERVER)

    with pytest.raises(RunStopped, match=r"ended after round 3, as `engram stop` asked for.*run"):
        go(tmp_path / "run", third, stops=True)
    record = Run.open(tmp_path / "run")
    assert (max(record.checkpoints()), record.results) == (3, None)
    found = go(tmp_path / "run", resume=str(tmp_path / "run"))
    assert found["clients"] == go(tmp_path / "whole")["clients"]


def test_a_run_that_waits_for_clients_is_stopped(runs, tmp_path):
    runs.append("1")
    stop_run(SERVER)
    g = patient(small(), hosts=())
    with pytest.raises(RunStopped, match="ended before its first round"):
        run_on(g, small(), tmp_path / "run", engine="flower")
    assert not (tmp_path / "run").exists()


@pytest.fixture
def begins(monkeypatch, tmp_path):
    """Opens a coordinator that begins a run in the test's folder ``run``."""
    monkeypatch.setattr(module, "is_simulated", lambda grid: True)
    context = SimpleNamespace(run_config={"out": "run"}, run_id=7)

    def begin():
        with opened(None, context) as (_, folder):
            RunWriter.create(folder, small(), engine="flower", training="x")

    return begin


def test_a_folder_that_another_coordinator_has_is_no_verdict_on_the_run(
    begins, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr("engram.runs.writer._PATIENCE", 0.0)
    other = RunWriter(tmp_path / "run")
    other.folder.mkdir()
    with other.hold(), pytest.raises(Taken):
        begins()
    begins()
    with pytest.raises(Taken):  # by whoever has begun it meanwhile
        begins()
    first, second = caplog.messages
    assert first.endswith("run is being run by another process at this moment")
    assert second.endswith("run is not empty: name another folder, or resume the run in it")


def test_what_is_wrong_with_the_run_is(begins, tmp_path, caplog):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes").touch()
    with pytest.raises(Refused, match="is not empty") as refused:
        begins()
    assert not isinstance(refused.value, Taken)
    assert caplog.messages == [f"{VERDICT}{refused.value}"]
    with pytest.raises(RunStopped), opened(None, SimpleNamespace(run_config={}, run_id=1)):
        raise RunStopped("round 2 diverged")
    assert caplog.messages[1:] == [f"{VERDICT}round 2 diverged"]
