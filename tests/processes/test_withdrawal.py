"""Real processes: runs that start from another's models, and that are trained without a client."""

import pytest

from engram.runs.record import RunRecord
from engram.settings.experiment import Experiment, read_by
from engram.settings.files import read_json
from engram.settings.plugins import add_plugins, load_plugins
from engram.simulations.engine import simulate
from engram.simulations.loopback import LoopbackFederation
from engram.wire.checksums import checked
from tests.processes.test_members import ROWS
from tests.support import assert_same

pytestmark = pytest.mark.processes

GIVEN = {
    "dataset": "wards",
    "partition": "natural",
    "num-rounds": 2,
    "eval-every": 2,
    "checkpoint-every": 1,
    "hidden": "8",
}


def as_simulated(folder, run, **change):
    """Whether a run on nodes has the model of one in this process."""
    settings = {**GIVEN, "num-clients": 3, "clients-per-round": 3, **change}
    simulate(Experiment.from_config(read_by("fedavg", settings) | {"method": "fedavg"}), folder)
    one, other = (RunRecord.open(path).load_checkpoint() for path in (folder, run))
    assert_same(one.model, other.model, atol=1e-5)


def test_runs_start_from_another_and_are_trained_without_a_client(tmp_path, plug_ins, engram):
    (tmp_path / "plugged.py").write_text(ROWS)
    add_plugins("plugged")
    load_plugins()
    data = ["--data", "wards"]
    with LoopbackFederation(tmp_path / "fed", clients=3, options=data) as there:
        place = ["--federation", there.server, "--control", there.control]
        given = [word for key, value in GIVEN.items() for word in ("--set", f"{key}={value}")]

        def said(*words):
            status, out, err = engram(*words, *place)
            assert status == 0, err
            return out

        said("run", "fedavg", *given, "--out", "runs/first")
        said("run", "fedavg", *given, "--from", "first", "--out", "runs/second")
        first, second = tmp_path / "runs/first", tmp_path / "runs/second"
        as_simulated(tmp_path / "one", first)
        as_simulated(tmp_path / "two", second, **{"start-from": str(first)})
        status, _, err = engram("withdraw", "first", "1", *place)
        assert status == 2
        assert f"client-1 is still a member of {there.server}" in err
        status, _, err = engram("withdraw", "first", "1")
        assert (status, "--federation SERVER_FOLDER" in err) == (2, True)
        assert engram("remove", there.server, "client-1", "--control", there.control)[0] == 0
        out = said("withdraw", "first", "1")
        assert "has its updates: runs/second, which started from" in out
        assert f"delete: {first.relative_to(tmp_path)}\n" in out
        said("withdraw", "second", "1", "--from", "first-without-1")
    new, later = tmp_path / "runs/first-without-1", tmp_path / "runs/second-without-1"
    as_simulated(tmp_path / "three", new, without="1")
    as_simulated(tmp_path / "four", later, without="1", **{"start-from": str(new)})
    record = RunRecord.open(new)
    assert [row["members"] for row in record.rows()] == [[0, 2]] * 3
    assert record.config["settings"]["without"] == "1"
    note = checked(read_json(new / "withdrawal.json"))
    assert (note["run"], note["client"], note["runs"]) == (str(first), 1, [str(second)])
