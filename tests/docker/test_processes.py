"""The compose file's commands, run as processes of this machine: one federation, start to end."""

import contextlib
import signal
import time
from ipaddress import ip_address

import psutil
import pytest

from engram.runs.run import Run
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


def test_a_federation_runs_from_its_making_to_its_results_whatever_is_killed(here):
    quick = {"num-rounds": 30, "hidden": 8, "local-steps": 2, "checkpoint-every": 1}
    here.up("run", *(word for key, value in quick.items() for word in ("--set", f"{key}={value}")))
    for name in CLIENTS:
        here.up(name)
    for name in CLIENTS:
        here.wait_healthy(name)
    assert {ip.is_loopback for ip in _listening(here.running["server"].pid)} == {True}
    assert not any(_listening(here.running[name].pid) for name in ("run", *CLIENTS))
    keys = _files(here.root / "federation", "*.key")
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in keys)

    run = here.path("run", "/results/run")
    _wait_for(here, run / "metrics.jsonl")
    here.stop(CLIENTS[0], signal.SIGKILL)
    here.again(CLIENTS[0])
    here.stop("server", signal.SIGKILL)
    here.again("server")
    _running(here, "run", "coordinator").kill()
    here.keep((run / "results.json").is_file)
    assert Run.open(run).config["settings"]["num-rounds"] == 30
    assert [row["round"] for row in Run.open(run).rows()] == list(range(31))
    here.wait_healthy("server")
    asked = here.run("server", "status", "/federation/engram/server")
    assert asked.returncode == 0, asked.stderr
    assert all(name in asked.stdout for name in CLIENTS)

    # `docker compose up` once more, after `docker stop`: nothing is made anew, and nobody minds.
    here.again("init")
    assert here.wait("init") == 0, here.log("init")
    rows = (run / "metrics.jsonl").read_bytes()
    for name in ("server", "run"):
        here.stop(name)
        here.again(name)
    for name in ("server", *CLIENTS):
        here.wait_healthy(name)
    assert here.running["run"].poll() is None
    assert _files(here.root / "federation", "*.key") == keys
    assert (run / "metrics.jsonl").read_bytes() == rows


def _running(here, name, kind):
    """A process of a container, by what its command line has."""
    children = psutil.Process(here.running[name].pid).children(recursive=True)
    return next(each for each in children if any(kind in word for word in each.cmdline()[1:]))


def _wait_for(here, path, seconds=600):
    """Waits until a file has something in it."""
    deadline = time.monotonic() + seconds
    while not (path.is_file() and path.stat().st_size):
        assert time.monotonic() < deadline, here.log("run")
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
