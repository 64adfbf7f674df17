"""Real processes: who is let into a federation, and who is not."""

import os
import shutil
import signal
import subprocess
import sys
from ipaddress import ip_address

import psutil
import pytest

from engram.link.server.identity import add_client, init_federation
from engram.simulations.loopback import LoopbackFederation
from tests.link.wire.processes import PATIENCE
from tests.processes.support import wait_for

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A server whose clients have no nodes yet; client-2 is not a member."""
    folder = tmp_path_factory.mktemp("deployed") / "fed"
    with LoopbackFederation(folder, clients=0) as there:
        for _ in range(3):
            there.options[add_client(folder).name] = []
        (there.server / "clients" / "client-2.pub").unlink()
        yield there


def copied(there, client, name):
    """Copies a client's folder to another one of the federation's."""
    there.options[name] = []
    return shutil.copytree(there.server.parent / client, there.server.parent / name)


def ends_with(there, name, says):
    """Waits until a node ends with a refusal."""
    assert there.processes[name].wait(PATIENCE) == 2
    said = there.log(name).read_text()
    assert [says in line for line in said.splitlines() if line.startswith("engram: ")] == [True]
    assert "Traceback" not in said


def connected(there, name):
    wait_for(lambda: "is connected" in there.log(name).read_text(), f"{name} on line")


def test_a_server_listens_on_this_machine_only(federation):
    process = psutil.Process(federation.processes["superlink"].pid)
    listening = [c.laddr for c in process.net_connections("tcp") if c.status == "LISTEN"]
    assert {address.port for address in listening} == {federation.fleet}
    for ip in (ip_address(address.ip) for address in listening):
        assert (getattr(ip, "ipv4_mapped", None) or ip).is_loopback


def test_a_second_server_is_refused(federation):
    argv = [sys.executable, "-m", "engram", "superlink", str(federation.server)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        f"engram: port {federation.fleet} is taken: end what listens there, or give another one "
        "with --fleet\n"
    )


def test_a_node_that_is_not_registered_is_refused(federation):
    federation.start("client-2")
    ends_with(federation, "client-2", "Either its key is not registered")


def test_of_two_nodes_with_one_key_the_older_one_ends(federation):
    copied(federation, "client-1", "client-stolen")
    federation.start("client-1")
    connected(federation, "client-1")
    federation.start("client-stolen")
    ends_with(federation, "client-1", "another node has connected as client-1")
    connected(federation, "client-stolen")


def test_a_node_asks_the_server_for_its_certificate(federation, tmp_path):
    own = copied(federation, "client-0", "client-deceived")
    init_federation(tmp_path / "other", clients=1, hosts=[], superlink="127.0.0.1:9092", days=1)
    shutil.copy(tmp_path / "other" / "client-0" / "ca.crt", own)
    federation.start("client-deceived")
    ends_with(federation, "client-deceived", "is not vouched for by")


def test_a_node_that_died_is_back_at_once(federation):
    federation.start("client-0")
    connected(federation, "client-0")
    os.killpg(federation.processes.pop("client-0").pid, signal.SIGKILL)
    federation.log("client-0").unlink()
    federation.start("client-0")
    connected(federation, "client-0")
    # The server still takes it for alive, for 20 s, and yet lets it in at its first try.
    assert "trying again" not in federation.log("client-0").read_text()
