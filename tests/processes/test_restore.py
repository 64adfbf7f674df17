"""Folders of a federation are lost, and restored from backups or made anew; its runs go on."""

import shutil

import numpy as np
import pytest

from engram.link.server.identity import init_federation, new_client_key
from engram.link.server.renewal import renew_server
from engram.runs.run import Run
from engram.settings.experiment import Experiment, read_by
from engram.simulations.deployed import run_deployed
from engram.simulations.loopback import LoopbackFederation
from tests.link.wire.processes import PATIENCE
from tests.processes.support import wait_for
from tests.support import assert_same, write_npz

pytestmark = pytest.mark.processes

GIVEN = {"num-clients": 2, "clients-per-round": 2, "min-clients": 2, "hidden": "8"}
GIVEN |= {"eval-every": 1, "checkpoint-every": 1, "timeout": 60.0, "num-classes": 3}


def start(there):
    for name in there.names:
        there.log(name).unlink(missing_ok=True)
        there.start(name)
    for log in map(there.log, there.names[1:]):
        wait_for(lambda log=log: "is connected" in log.read_text(), f"{log} says it")


def lose(there, *folders):
    for name in [*there.processes]:
        there.kill(name)
    for folder in folders:
        shutil.rmtree(folder)


def train(there, folder, rounds):
    settings = read_by("ditto", GIVEN | {"num-rounds": rounds}) | {"method": "ditto"}
    run_deployed(Experiment.from_config(settings), folder, there.server)
    return Run.open(folder).load_checkpoint().model


def test_lost_folders_are_restored_or_made_anew_and_the_run_goes_on(tmp_path):
    data, run, fed = (tmp_path / name for name in ("data", "run", "fed"))
    data.mkdir()
    there = LoopbackFederation(fed, clients=2)
    for client in range(2):
        x = np.random.default_rng(client).normal(size=(60, 4)).astype(np.float32)
        path = write_npz(data / f"{client}.npz", x=x, y=np.arange(60) % 3)
        there.options[f"client-{client}"] = ["--data", path]
    folders = [there.server, fed / "client-0", data, run]

    def restore(*lost):
        for folder in lost:
            shutil.copytree(tmp_path / "backup" / folder.name, folder)

    with there:
        train(there, run, 2)
        left = shutil.ignore_patterns("link.sock", "runs")
        for folder in folders:
            shutil.copytree(folder, tmp_path / "backup" / folder.name, ignore=left)
        expected = train(there, run, 4)
        lose(there, *folders)
        there.start("client-1")
        assert there.processes.pop("client-1").wait(PATIENCE) == 2
        assert "1.npz are not there: name a file or folder" in there.log("client-1").read_text()
        restore(*folders)
        start(there)
        assert_same(train(there, run, 4), expected, atol=1e-6)
        # A backup of the server with its former key, and a site without a backup.
        renew_server(there.server, another_key=True)
        wait_for((fed / "client-1" / "least.crt").exists, "news of the server's key")
        lose(there, there.server, fed / "client-0")
        restore(there.server)
        renew_server(there.server, another_key=True)
        new_client_key(fed, 0)
        start(there)
        train(there, run, 5)
        # The authority is lost: a new federation, with the nodes' states.
        lose(there)
        new = tmp_path / "new" / "fed"
        new.parent.mkdir()
        at = f"127.0.0.1:{there.fleet}"
        init_federation(new, clients=2, hosts=(), superlink=at, days=1)
        for client in ("client-0", "client-1"):
            shutil.move(fed / client / "state", new / client / "state")
        for part in ("server", "client-0", "client-1"):
            shutil.rmtree(fed / part)
            shutil.move(new / part, fed / part)
        start(there)
        train(there, run, 6)
