"""Flower's own SuperLink and SuperNodes, of whichever release is installed, with our apps."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from engram.link.server.identity import init_federation
from engram.runs.run import Run
from engram.settings.fingerprint import source_root
from engram.simulations.engine import simulate
from tests.golden import federated
from tests.link.wire.processes import free_port
from tests.processes.support import wait_for
from tests.support import assert_same

pytestmark = pytest.mark.processes

NODES, ROUNDS = 3, 2
BIN = Path(sys.executable).parent
OVER_HTTP = find_spec("flwr.superlink.routers.fleet") is not None  # later releases' only way


class Stock:
    """A SuperLink with TLS, and nodes whose keys it knows, with their logs in the folder."""

    def __init__(self, folder):
        self.folder, self.processes, self.due = folder, {}, 0.0
        self.http, self.fleet = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.ports = [free_port() for _ in range(NODES)]
        # Flower has no command that makes certificates and keys.
        init_federation(folder / "keys", clients=NODES, hosts=[], superlink=self.fleet, days=1)
        self.root = folder / "keys" / "client-0" / "ca.crt"
        (folder / "home").mkdir()
        (folder / "empty").mkdir()  # processes import from their working directory first
        connection = {"address": self.http, "root-certificates": str(self.root)}
        lines = [f"{key} = {json.dumps(value)}" for key, value in connection.items()]
        text = "\n".join(["[superlink]", 'default = "stock"', "[superlink.stock]", *lines])
        (folder / "home" / "config.toml").write_text(text)
        self.env = os.environ | {
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }

    def start(self, name, *words):
        with (self.folder / f"{name}.log").open("ab") as log:
            how = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            how |= {"env": self.env, "cwd": self.folder / "empty", "start_new_session": True}
            self.processes[name] = subprocess.Popen([BIN / words[0], *map(str, words[1:])], **how)

    def superlink(self):
        host, _, port = self.http.rpartition(":")
        own = self.folder / "keys" / "server"
        self.start(
            *("superlink", "flower-superlink", "--ssl-ca-certfile", self.root),
            *("--ssl-certfile", own / "server.crt", "--ssl-keyfile", own / "server.key"),
            *("--host", host, "--port", port, "--fleet-api-address", self.fleet),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
        )

    def answers(self):
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"https://{self.http}/health", verify=str(self.root)).is_success

    def supernode(self, number):
        state = self.folder / f"state-{number}"
        config = f'partition-id={number} num-partitions={NODES} state="{state}"'
        self.start(
            *(f"node-{number}", "flower-supernode", "--root-certificates", self.root),
            *("--superlink", self.http if OVER_HTTP else self.fleet),
            "--auth-supernode-private-key",
            self.folder / "keys" / f"client-{number}" / "client.key",
            *("--host", "127.0.0.1", "--port", self.ports[number], "--node-config", config),
        )

    def kill(self, name):
        """Kills a process and its children, as a power cut would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes.pop(name).wait()

    def look(self):
        """Starts nodes again that have ended, every ten seconds, as a service manager would.

        A SuperLink refuses a node that was killed until it has missed heartbeats for a minute.
        """
        if time.monotonic() < self.due:
            return
        self.due = time.monotonic() + 10
        for number in range(NODES):
            name = f"node-{number}"
            if self.processes[name].poll() is not None:
                self.kill(name)
                self.supernode(number)

    def flwr(self, *words):
        how = {"env": self.env, "cwd": self.folder / "empty", "capture_output": True, "text": True}
        done = subprocess.run([BIN / "flwr", *words], check=False, **how)
        assert done.returncode == 0, done.stdout + done.stderr

    def said(self):
        return "\n".join(path.read_text() for path in self.folder.glob("*.log"))


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    made = Stock(tmp_path_factory.mktemp("stock"))
    try:
        made.superlink()
        wait_for(made.answers, "the SuperLink")
        for number in range(NODES):
            key = made.folder / "keys" / "server" / "clients" / f"client-{number}.pub"
            made.flwr("supernode", "register", str(key), "stock")
            made.supernode(number)
        yield made
    finally:
        for name in [*made.processes]:
            made.kill(name)


def begin(stock, experiment, folder):
    """Submits a run of the checkout."""
    settings = json.dumps(experiment.to_config() | {"out": str(folder)})
    stock.flwr("run", str(source_root()), "stock", "--run-config", f"engram='{settings}'")


def rows(folder):
    """How many rounds are recorded."""
    with contextlib.suppress(OSError):
        return len((folder / "metrics.jsonl").read_text().splitlines())
    return 0


def test_a_run_on_stock_nodes_gives_the_model_of_one_process(stock, tmp_path):
    more = {"num_rounds": ROUNDS, "eval_every": ROUNDS, "min_clients": 4, "timeout": 900.0}
    experiment = federated.experiment("local-moml, carried, exact", **more)
    there = tmp_path / "there"
    simulate(experiment, tmp_path / "here")
    begin(stock, experiment, there)

    def ended():
        stock.look()
        return (there / "results.json").is_file()

    try:
        wait_for(lambda: rows(there) > 1, "a round")
        stock.kill("node-1")
        stock.supernode(1)
        wait_for(ended, "the run's end")
    except AssertionError as error:
        raise AssertionError(stock.said()) from error
    expected, found = Run.open(tmp_path / "here"), Run.open(there)
    assert_same(found.load_checkpoint().model, expected.load_checkpoint().model, atol=1e-5)
    cohorts = [[row.get("cohort") for row in run.rows()] for run in (expected, found)]
    assert cohorts[0] == cohorts[1]
