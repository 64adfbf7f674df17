"""Links between network namespaces, cut and mended."""

import subprocess
import sys

import pytest

from engram.settings.fingerprint import source_root

SCRIPT = """
import socket, subprocess, sys
from pathlib import Path
from benchmarks.namespaces import (
    LinkedFederation, _hold, _join, _within, enter_namespace
)

if not enter_namespace():
    sys.exit("no namespaces here")
federation = LinkedFederation(Path(sys.argv[1]), clients=2)
server = socket.create_server((federation.host, 0))
connect = f"import socket; socket.create_connection({server.getsockname()}, 2)"
federation._inside = {name: _hold() for name in federation.names[1:]}
for name, process in federation._inside.items():
    _join(name, process)

def reached():
    calls = ([*_within(at), sys.executable, "-c", connect] for at in federation._inside.values())
    return [subprocess.run(call, stderr=subprocess.DEVNULL).returncode == 0 for call in calls]

print(reached())
federation.cut("client-1")
print(reached())
federation.mend("client-1")
while not all(found := reached()):  # a link takes a moment until it is up
    pass
print(found)
federation.stop()
while "link" in Path("/proc/thread-self/net/dev").read_text():  # the kernel takes a moment
    pass
"""


@pytest.mark.processes
def test_a_cut_link_cuts_off_its_own_node_alone(tmp_path):
    script = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    kept = {"capture_output": True, "text": True, "cwd": source_root()}
    done = subprocess.run(script, check=False, timeout=120, **kept)
    if "no namespaces here" in done.stderr:
        pytest.skip("only root on Linux makes network namespaces")
    assert done.stdout.split("\n") == [
        "[True, True]",
        "[True, False]",
        "[True, True]",
        "",
    ], done.stderr
