"""Real processes: a client comes, another leaves, and the run goes on, is stopped and resumed."""

import contextlib
import subprocess
import threading

import pytest

from engram.link.server.launch import program
from engram.runs.record import RunRecord
from engram.server.status import participation
from engram.server.stopping import stop_run
from engram.settings.errors import RunStopped
from engram.settings.experiment import Experiment, read_by
from engram.settings.plugins import add_plugins, load_plugins
from engram.simulations.deployed import run_deployed
from engram.simulations.engine import simulate
from engram.simulations.loopback import LoopbackFederation
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
    given = {
        "dataset": "wards",
        "partition": "natural",
        "num-clients": 3,
        "clients-per-round": 3,
        "num-rounds": 1000,
        "eval-every": 1000,
        "checkpoint-every": 10,
        "timeout": 20.0,
        "hidden": "8",
    }
    return Experiment.from_config({**read_by("scaffold", given), "method": "scaffold", **change})


def engram(folder, *words):
    launch = program("engram", *words, home=folder / "flwr")
    done = subprocess.run(launch.argv, env=launch.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_client_comes_and_another_leaves_and_a_simulation_replays_it(tmp_path, plug_ins):
    (tmp_path / "plugged.py").write_text(ROWS)
    add_plugins("plugged")
    load_plugins()
    folder, data = tmp_path / "run", ["--data", "wards"]

    def rows():
        return RunRecord(folder).rows()

    def reaches(what, condition):
        wait_for(lambda: any(condition(row) for row in rows()), 180, what)

    with LoopbackFederation(tmp_path / "fed", clients=3, options=data) as there:

        def run(experiment):
            with contextlib.suppress(RunStopped):
                run_deployed(experiment, folder, there.server, control=there.control)

        going = threading.Thread(target=run, args=(settings(),), daemon=True)
        going.start()
        reaches("two rounds", lambda row: row["round"] == 2)
        assert there.add(data) == "client-3"
        reaches("a round with four", lambda row: row.get("cohort") == [0, 1, 2, 3])
        node = there.processes["client-1"]
        said = engram(tmp_path, "leave", str(tmp_path / "fed" / "client-1"))
        assert said.startswith("client-1: its key is refused from now on\n")
        wait_for(lambda: rows()[-1]["members"] == [0, 2, 3], 60, "a round without it")
        assert node.wait(60) == 0
        assert "this client has left the federation" in there.log("client-1").read_text()
        stop_run(there.server, control=there.control)
        going.join(120)
        done = rows()[-1]["round"]
        run(settings(**{"num-rounds": done + 2}))
    there = RunRecord.open(folder)
    assert there.results["rounds"] == done + 2
    assert there.results["clients"]["ids"] == [0, 2, 3]
    last = there.rows()[-1]
    assert (last["cohort"], last["members"], last["absent"]) == ([0, 2, 3], [0, 2, 3], {})
    shares = {share.client: share for share in participation(there.rows())}
    assert "no member any more" in shares[1].reasons
    assert shares[0].took_part > shares[3].took_part > 0
    replayed = {"num-clients": 4, "clients-per-round": 4, "participation": str(folder)}
    simulate(settings(**replayed, **{"num-rounds": done + 2}), tmp_path / "here")
    here = RunRecord.open(tmp_path / "here")
    assert_same(here.load_checkpoint().model, there.load_checkpoint().model, atol=1e-5)
    assert [row["members"] for row in here.rows()] == [row["members"] for row in there.rows()]
