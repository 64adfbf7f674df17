"""Real processes of two users on one machine: who may use a server's socket."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from engram.simulations.loopback import LoopbackFederation

STRANGER = 54321
CALL = """
import socket, sys
with socket.socket(socket.AF_UNIX) as client:
    try:
        client.connect(sys.argv[1])
    except OSError as error:
        print(type(error).__name__)
    else:
        print("connected")
"""


def as_stranger(*argv):
    return ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", *argv]


def can_be_a_stranger():
    if os.geteuid() or not shutil.which("setpriv"):
        return False
    probe = as_stranger(sys.executable, "-c", "import socket")
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


def test_another_user_of_the_machine_cannot_use_a_server_s_socket(folder):
    with LoopbackFederation(folder / "fed", clients=1) as federation:
        (folder / "fed").chmod(0o755)
        socket = str(federation.server / "link.sock")
        for by, says in ((lambda *argv: argv, "connected"), (as_stranger, "PermissionError")):
            argv = by(sys.executable, "-c", CALL, socket)
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            assert done.stdout.split() == [says], done.stderr
