"""Real processes with rows of their own: clients come and leave, and runs go on without them."""

import contextlib
import threading

import pytest

from engram.runs.participation import participation
from engram.runs.run import Run
from engram.server.stopping import stop_run
from engram.settings.errors import RunStopped
from engram.settings.experiment import Experiment, read_by
from engram.settings.files import read_json
from engram.settings.plugins import add_plugins, load_plugins
from engram.simulations.deployed import run_deployed
from engram.simulations.engine import simulate
from engram.simulations.loopback import LoopbackFederation
from engram.wire.checksums import checked
from tests.link.wire.processes import PATIENCE
from tests.processes.support import wait_for
from tests.support import assert_same

pytestmark = pytest.mark.processes

ROWS = '''
import numpy as np

import engram


@engram.data
def wards(client):
    """Returns a ward's rows, of three classes."""
    rng, n = np.random.default_rng([5, client]), 40 + 5 * client
    y = rng.integers(0, 3, n)
    return (np.eye(3, 4)[y] + 0.5 * rng.normal(size=(n, 4))).astype(np.float32), y
'''


def settings(**change):
    given = {"dataset": "wards", "partition": "natural", "timeout": 20.0, "hidden": "8"}
    given |= {"num-clients": 3, "clients-per-round": 3}
    given |= {"num-rounds": 1000, "eval-every": 1000, "checkpoint-every": 10}
    return Experiment.from_config({**read_by("scaffold", given), "method": "scaffold", **change})


def test_a_client_comes_and_another_leaves_and_a_simulation_replays_it(tmp_path, plug_ins, engram):
    (tmp_path / "plugged.py").write_text(ROWS)
    add_plugins("plugged")
    load_plugins()
    folder, data = tmp_path / "run", ["--data", "wards"]

    def rows():
        return Run(folder).rows()

    def reaches(what, condition):
        wait_for(lambda: any(condition(row) for row in rows()), what)

    with LoopbackFederation(tmp_path / "fed", clients=3, options=data) as there:

        def run(experiment):
            with contextlib.suppress(RunStopped):
                run_deployed(experiment, folder, there.server)

        going = threading.Thread(target=run, args=(settings(),), daemon=True)
        going.start()
        reaches("two rounds", lambda row: row["round"] == 2)
        assert there.add(data) == "client-3"
        reaches("a round with four", lambda row: row.get("cohort") == [0, 1, 2, 3])
        node = there.processes["client-1"]
        status, said, err = engram("leave", tmp_path / "fed" / "client-1")
        assert status == 0, err
        assert said.startswith("client-1: its key is refused from now on\n")
        wait_for(lambda: rows()[-1]["members"] == [0, 2, 3], "a round without it")
        assert node.wait(PATIENCE) == 0
        assert "this client has left the federation" in there.log("client-1").read_text()
        stop_run(there.server)
        going.join(PATIENCE)
        done = rows()[-1]["round"]
        run(settings(**{"num-rounds": done + 2}))
    there = Run.open(folder)
    assert there.results["rounds"] == done + 2
    assert there.results["clients"]["ids"] == [0, 2, 3]
    last = there.rows()[-1]
    assert (last["cohort"], last["members"], last["absent"]) == ([0, 2, 3], [0, 2, 3], {})
    shares = {share.client: share for share in participation(there.rows())}
    assert "no member any more" in shares[1].reasons
    assert shares[0].took_part > shares[3].took_part > 0
    replayed = {"num-clients": 4, "clients-per-round": 4, "participation": str(folder)}
    simulate(settings(**replayed, **{"num-rounds": done + 2}), tmp_path / "here")
    here = Run.open(tmp_path / "here")
    assert_same(here.load_checkpoint().model, there.load_checkpoint().model, atol=1e-5)
    assert [row["members"] for row in here.rows()] == [row["members"] for row in there.rows()]


GIVEN = {"dataset": "wards", "partition": "natural", "hidden": "8"}
GIVEN |= {"num-rounds": 2, "eval-every": 2, "checkpoint-every": 1}


def as_simulated(folder, run, **change):
    """Whether a run on nodes has the model of one in this process."""
    settings = {**GIVEN, "num-clients": 3, "clients-per-round": 3, **change}
    simulate(Experiment.from_config(read_by("fedavg", settings) | {"method": "fedavg"}), folder)
    one, other = (Run.open(path).load_checkpoint() for path in (folder, run))
    assert_same(one.model, other.model, atol=1e-5)


def test_runs_start_from_another_and_are_trained_without_a_client(tmp_path, plug_ins, engram):
    (tmp_path / "plugged.py").write_text(ROWS)
    add_plugins("plugged")
    load_plugins()
    data = ["--data", "wards"]
    with LoopbackFederation(tmp_path / "fed", clients=3, options=data) as there:
        place = ["--federation", there.server]
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
        assert engram("remove", there.server, "client-1")[0] == 0
        out = said("withdraw", "first", "1")
        assert "has its updates: runs/second, which started from" in out
        assert f"delete: {first.relative_to(tmp_path)}\n" in out
        said("withdraw", "second", "1", "--from", "first-without-1")
    new, later = tmp_path / "runs/first-without-1", tmp_path / "runs/second-without-1"
    as_simulated(tmp_path / "three", new, without="1")
    as_simulated(tmp_path / "four", later, without="1", **{"start-from": str(new)})
    record = Run.open(new)
    assert [row["members"] for row in record.rows()] == [[0, 2]] * 3
    assert record.config["settings"]["without"] == "1"
    note = checked(read_json(new / "withdrawal.json"))
    assert (note["run"], note["client"], note["runs"]) == (str(first), 1, [str(second)])
