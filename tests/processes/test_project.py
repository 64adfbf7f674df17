"""A project of `engram new` on three nodes over gRPC with TLS: the numbers of one process."""

import pytest

from engram.runs.record import RunRecord
from tests.cli.test_new import THERE, project
from tests.processes.test_docs import run_script
from tests.support import assert_same

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("plug_ins")]


def test_its_readmes_commands_for_machines_run_as_one_process(engram, monkeypatch):
    folder = project(engram, monkeypatch)
    assert engram("run", "--out=here")[0] == 0
    said = run_script(THERE, folder)
    assert "recorded in runs/fed" in said, said
    there, here = (RunRecord.open(folder / name) for name in ("runs/fed", "here"))
    assert_same(there.load_checkpoint().model, here.load_checkpoint().model, atol=1e-6)
    losses = [record.results["clients"]["loss"] for record in (there, here)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert there.config["sources"] == here.config["sources"]
