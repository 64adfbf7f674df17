"""How a coordinator says why it ends: with a verdict on its run, or without one."""

from types import SimpleNamespace

import pytest

from engram.runs.record import RunRecord
from engram.runs.run_folder import Taken
from engram.server import app_start as module
from engram.server.app_start import opened
from engram.settings.errors import Refused, RunStopped
from engram.settings.logs import VERDICT
from tests.support import small


@pytest.fixture
def begins(monkeypatch, tmp_path):
    """Opens a coordinator that begins a run in the test's folder ``run``."""
    monkeypatch.setattr(module, "simulated", lambda grid: True)
    context = SimpleNamespace(run_config={"out": "run"}, run_id=7)

    def begin():
        with opened(None, context) as (_, folder):
            RunRecord.create(folder, small(), engine="flower", training="x")

    return begin


def test_a_folder_that_another_coordinator_has_is_no_verdict_on_the_run(
    begins, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr("engram.runs.run_folder._PATIENCE", 0.0)
    other = RunRecord(tmp_path / "run")
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
