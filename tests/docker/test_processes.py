"""The compose file's commands, run as processes of this machine: one federation, start to end."""

import contextlib
import signal
import time
from ipaddress import ip_address

import psutil
import pytest

from server.record import RunRecord
from tests.docker.compose import Processes, load

pytestmark = pytest.mark.processes

PROJECT = load("compose.yml")
CLIENTS = [name for name in PROJECT["services"] if name.startswith("client-")]


@pytest.fixture
def here(tmp_path):
    processes = Processes(tmp_path, PROJECT)
    try:
        yield processes
    finally:
        processes.down()


def test_a_federation_runs_from_its_making_to_its_results(here):
    here.up("coordinator", *_settings(3), *_control(here))
    for name in CLIENTS:
        here.up(name)
    for name in CLIENTS:
        here.wait_healthy(name)
    assert all(ip.is_loopback for ip in _listening(here.running["superlink"].pid))
    keys = _files(here.root / "federation", "*.key")
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in keys)

    asked = here.run("superlink", "status", "/federation/engram/server", *_control(here))
    assert asked.returncode == 0, asked.stderr
    assert here.wait("coordinator") == 0, here.log("coordinator")
    found = RunRecord.open(here.path("coordinator", "/results/run"))
    assert found.config["settings"]["num-rounds"] == 3
    assert here.path("superlink", "/federation/engram/server/superlink.db").stat().st_size

    # `docker compose up` once more: nothing is made anew, and nobody minds.
    for name in ("init", "register", "coordinator"):
        here.again(name)
        assert here.wait(name) == 0, here.log(name)
    assert _files(here.root / "federation", "*.key") == keys


def test_what_is_killed_and_started_again_goes_on(here):
    here.up("coordinator", *_settings(30), *_control(here))
    for name in CLIENTS:
        here.up(name)
    _wait_for(here, "metrics.jsonl")
    for name in ("superlink", CLIENTS[0], "coordinator"):
        here.stop(name, signal.SIGKILL)
        here.again(name)
        time.sleep(2)
    here.keep("coordinator")
    found = RunRecord.open(here.path("coordinator", "/results/run"))
    assert found.config["settings"]["num-rounds"] == 30
    assert (here.path("coordinator", "/results/run") / "results.json").is_file()


def _settings(rounds):
    quick = {"num-rounds": rounds, "hidden": 8, "local-steps": 2, "checkpoint-every": 1}
    return [word for key, value in quick.items() for word in ("--set", f"{key}={value}")]


def _control(here):
    """Where the Control API is here; in the containers, where commands look for it."""
    return "--control", f"127.0.0.1:{here.ports[8000]}"


def _wait_for(here, name, seconds=120):
    """Waits until the run's folder has a file with something in it."""
    path = here.path("coordinator", "/results/run") / name
    deadline = time.monotonic() + seconds
    while not (path.is_file() and path.stat().st_size):
        assert time.monotonic() < deadline, here.log("coordinator") + here.log("superlink")
        time.sleep(0.2)


def _listening(pid):
    """The addresses on which a process and those that it started listen."""
    found = []
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += process.net_connections("inet")
    listening = {ip_address(each.laddr.ip) for each in found if each.status == psutil.CONN_LISTEN}
    return {getattr(ip, "ipv4_mapped", None) or ip for ip in listening}


def _files(folder, pattern):
    return {path: path.read_bytes() for path in folder.rglob(pattern)}
