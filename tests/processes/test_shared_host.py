"""Real processes of two users on one machine: who may use a SuperLink's Control API."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from engram.link.credentials import read_server
from engram.link.server.identity import init_federation
from engram.link.server.launch import program, superlink_command
from tests.processes.support import free_port, running, wait_for

STRANGER = 54321
CALL = """
import ssl, sys
import httpx
url, root, claim = sys.argv[1:]
headers = {"X-Forwarded-For": claim} if claim else {}
with httpx.Client(verify=ssl.create_default_context(cafile=root), headers=headers) as client:
    for path in ("/health", "/docs", "/v1/control/list-runs", "/v1/runtime/acquire-task"):
        answer = client.request("POST" if "v1" in path else "GET", url + path)
        print(answer.status_code, "only the user who started" in answer.text)
"""


def as_stranger(*argv):
    return ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", *argv]


def can_be_a_stranger():
    if os.geteuid() or not shutil.which("setpriv"):
        return False
    probe = as_stranger(sys.executable, "-c", "import httpx")
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not can_be_a_stranger(), reason="nobody else can be had here"),
]


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory() as made:  # pytest's are for nobody else
        Path(made).chmod(0o755)
        yield Path(made)


def test_another_user_of_the_machine_cannot_use_a_superlink(folder):
    fleet, control = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    init_federation(folder / "fed", clients=1, hosts=[], superlink=fleet, days=1)
    server = folder / "fed" / "server"
    root = Path(shutil.copy(read_server(server).tls.root_certificate, folder / "ca.crt"))
    root.chmod(0o644)
    with running(superlink_command(server, control=control), folder / "superlink.log") as superlink:

        def called(claim="", by=lambda *argv: argv):
            argv = by(sys.executable, "-c", CALL, f"https://{control}", str(root), claim)
            done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
            return done.stdout.splitlines()

        wait_for(lambda: called()[:1] == ["200 False"], 60, "the Control API")
        assert not [line for line in called() if line.startswith("403")]
        ours = wait_for(lambda: connections(superlink), 60, "the SuperExec")
        for claim in ("", ours[0]):  # anybody can look these up, and say that he is one of them
            assert called(claim, as_stranger) == ["403 True"] * 4
        run = program(
            *("engram", "run", "--federation", str(server), "--control", control),
            *("--out", str(folder / "run")),
            home=folder / "flwr",
        )
        with running(run, folder / "run.log"):
            words = wait_for(lambda: coordinator(superlink), 60, "the coordinator")
    assert "--token-file" in words
    assert "--token" not in words


def children(superlink):
    return psutil.Process(superlink.pid).children(recursive=True)


def connections(superlink):
    """The addresses of its own processes' connections with it."""
    ends = (end for child in children(superlink) for end in child.net_connections("tcp"))
    return [f"{end.laddr.ip}:{end.laddr.port}" for end in ends if end.status == "ESTABLISHED"]


def coordinator(superlink):
    commands = (child.cmdline() for child in children(superlink))
    return next((words for words in commands if "flwr-serverapp" in " ".join(words)), [])
