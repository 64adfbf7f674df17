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
from tests.processes.support import wait_for
from tests.support import assert_same, write_npz

pytestmark = pytest.mark.processes

GIVEN = {"num-clients": 2, "clients-per-round": 2, "min-clients": 2, "hidden": "8"}
GIVEN |= {"eval-every": 1, "checkpoint-every": 1, "timeout": 10.0, "num-classes": 3}


class Federation:
    """Two nodes with a file of data each, one run, and a backup of every folder."""

    def __init__(self, there, folder):
        self.there, self.folder, self.backup = there, folder, folder / "backup"
        self.parts = ("fed/server", "fed/client-0", "data", "run")

    def run(self, rounds):
        settings = read_by("ditto", GIVEN | {"num-rounds": rounds}) | {"method": "ditto"}
        run_deployed(Experiment.from_config(settings), self.folder / "run", self.there.server)
        return Run.open(self.folder / "run").load_checkpoint().model

    def save(self):
        left = shutil.ignore_patterns("link.sock", "runs")
        for part in self.parts:
            shutil.copytree(self.folder / part, self.backup / part, ignore=left)

    def lose(self, *parts):
        for name in [*self.there.processes]:
            self.there.kill(name)
        for part in parts:
            shutil.rmtree(self.folder / part)

    def restore(self, *parts):
        for part in parts:
            shutil.copytree(self.backup / part, self.folder / part)

    def start(self):
        for name in self.there.names:
            self.there.log(name).unlink(missing_ok=True)
            self.there.start(name)
        self.wait()

    def wait(self):
        for name in self.there.names[1:]:
            log = self.there.log(name)
            wait_for(lambda log=log: "is connected" in log.read_text(), 120, f"{name} on line")


@pytest.fixture
def federation(tmp_path):
    (tmp_path / "data").mkdir()
    there = LoopbackFederation(tmp_path / "fed", clients=2)
    for client in range(2):
        rng = np.random.default_rng(client)
        x, y = rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
        path = write_npz(tmp_path / "data" / f"{client}.npz", x=x, y=y)
        there.options[f"client-{client}"] = ["--data", path]
    with there:
        found = Federation(there, tmp_path)
        found.wait()
        yield found


def test_every_folder_is_restored_and_the_run_gives_what_it_would_have(federation):
    federation.run(2)
    federation.save()
    expected = federation.run(4)
    federation.lose(*federation.parts)
    federation.restore(*federation.parts)
    federation.start()
    assert_same(federation.run(4), expected, atol=1e-6)
    federation.lose("data")
    there = federation.there
    there.start("client-1")
    assert there.processes.pop("client-1").wait(60) == 2
    assert "1.npz are not there: name a file or folder" in there.log("client-1").read_text()
    federation.restore("data")
    federation.start()
    federation.run(5)


def test_folders_without_a_backup_are_made_anew_and_the_run_goes_on(federation, tmp_path):
    fed, there = tmp_path / "fed", federation.there
    federation.run(2)
    federation.save()
    renew_server(there.server, another_key=True)
    wait_for((fed / "client-1" / "least.crt").exists, 60, "news of the server's key")
    # A backup of the server with its former key, and a site without a backup.
    federation.lose("fed/server", "fed/client-0")
    federation.restore("fed/server")
    renew_server(there.server, another_key=True)
    new_client_key(fed, 0)
    federation.start()
    federation.run(4)
    # The authority is lost: a new federation, with the nodes' states.
    federation.lose()
    new = tmp_path / "new" / "fed"
    new.parent.mkdir()
    at = f"127.0.0.1:{there.fleet}"
    init_federation(new, clients=2, hosts=(), superlink=at, days=1)
    for client in ("client-0", "client-1"):
        shutil.move(fed / client / "state", new / client / "state")
        shutil.rmtree(fed / client)
        shutil.move(new / client, fed / client)
    shutil.rmtree(there.server)
    shutil.move(new / "server", there.server)
    federation.start()
    federation.run(6)
    assert [*(fed / "client-1" / "state" / "memory").glob("*/client-1/*6*")]
