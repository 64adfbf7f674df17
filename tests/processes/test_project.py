"""A project of `engram new` on three nodes over gRPC with TLS: the numbers of one process."""

import pytest

from engram.runs.record import RunRecord
from tests.cli.test_new import THERE, project
from tests.processes.test_docs import run_script
from tests.support import assert_same

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("plug_ins")]


def assert_as_here(there, here):
    assert_same(there.load_checkpoint().model, here.load_checkpoint().model, atol=1e-6)
    losses = (record.results["clients"]["loss"] for record in (there, here))
    assert next(losses) == pytest.approx(next(losses), abs=1e-6)
    assert there.config["sources"] == here.config["sources"]


def test_its_readmes_commands_for_machines_run_as_one_process(engram, monkeypatch):
    folder = project(engram, monkeypatch)
    assert engram("run", "--out=here")[0] == 0
    said = run_script(THERE, folder)
    assert "recorded in runs/fed" in said, said
    assert_as_here(RunRecord.open(folder / "runs" / "fed"), RunRecord.open(folder / "here"))


def test_a_federation_of_processes_runs_as_one_process(engram, monkeypatch):
    folder = project(engram, monkeypatch)
    few = ["-snum-rounds=2", "-sanchored.eta=0.3"]
    assert engram("run", *few, "--out=here")[0] == 0
    status, _, err = engram("federation", *few, "--out=there")
    assert status == 0, err
    assert_as_here(RunRecord.open(folder / "there" / "run"), RunRecord.open(folder / "here"))
