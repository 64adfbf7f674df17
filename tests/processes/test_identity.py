"""Real processes: who is let into a federation, and who is not."""

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from ipaddress import ip_address

import grpc
import httpx
import psutil
import pytest

from engram.link.credentials import read_node, read_server
from engram.link.flower import FleetStub, fleet_pb2, nodes_over_http
from engram.link.server.identity import init_federation
from engram.link.server.launch import Launch, flwr_command, program, superlink_command
from engram.link.server.registration import register_clients
from engram.settings.fingerprint import source_root
from engram.settings.settings_files import read_settings
from tests.processes.support import free_port, running, wait_for

pytestmark = pytest.mark.processes


class Federation:
    """A federation on this machine; the last of its clients is kept from being registered."""

    def __init__(self, folder, clients, **change):
        self.folder, self.server = folder, folder / "server"
        self.fleet, self.control = free_port(), free_port()
        superlink = f"127.0.0.1:{self.fleet}"
        init_federation(folder, clients=clients, hosts=[], superlink=superlink, days=1, **change)
        self.at = f"127.0.0.1:{self.control}"
        (self.server / "clients" / f"client-{clients - 1}.pub").unlink()

    def superlink(self):
        return running(
            superlink_command(self.server, control=self.at), self.folder / "superlink.log"
        )

    def answers(self):
        tls = read_server(self.server).tls
        trust = ssl.create_default_context(cafile=tls.root_certificate) if tls else True
        try:
            url = f"{'https' if tls else 'http'}://{self.at}/health"
            return httpx.get(url, verify=trust).is_success
        except httpx.HTTPError:
            return False

    def nodes(self):
        """The nodes that are online, by Flower's own command."""
        launch = flwr_command(self.server, "supernode", "list", "--format", "json", control=self.at)
        done = subprocess.run(
            launch.argv, env=launch.env, cwd=launch.cwd, capture_output=True, check=True, timeout=60
        )
        listed = json.loads(done.stdout)["nodes"]
        return {int(node["node-id"]) for node in listed if node["status"] == "online"}

    def node(self, tmp_path, client, root=None):
        """Starts a stock SuperNode as a client, with its own authority or another one."""
        own = read_node(self.folder / f"client-{client}")
        return self.supernode(
            tmp_path,
            *("--root-certificates", str(root or own.root_certificate)),
            *("--auth-supernode-private-key", str(own.private_key)),
        )

    def supernode(self, tmp_path, *options):
        launch = program(
            "flower-supernode",
            *("--superlink", self.at if nodes_over_http() else f"127.0.0.1:{self.fleet}"),
            *("--port", str(free_port())),
            *options,
            home=tmp_path / "flwr",
        )
        return running(launch, tmp_path / "node.log")


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A SuperLink that knows clients 0 and 1, and not client 2; its first registration."""
    made = Federation(tmp_path_factory.mktemp("deployed") / "fed", 3)
    with made.superlink() as made.process:
        wait_for(made.answers, 30, "the SuperLink's Control API")
        made.registered = list(register_clients(made.server, control=made.at))
        yield made


def test_it_listens_on_this_machine_only(federation):
    process = psutil.Process(federation.process.pid)
    listening = [c.laddr for c in process.net_connections("tcp") if c.status == "LISTEN"]
    assert {address.port for address in listening} == {federation.fleet, federation.control}
    for ip in (ip_address(address.ip) for address in listening):
        assert (getattr(ip, "ipv4_mapped", None) or ip).is_loopback


def test_registering_again_changes_nothing(federation):
    assert [client for client, _ in federation.registered] == ["client-0", "client-1"]
    assert all(node for _, node in federation.registered)
    again = list(register_clients(federation.server, control=federation.at))
    assert again == [("client-0", None), ("client-1", None)]


def test_no_key_and_plain_text_are_refused(federation):
    """By raw calls, as of a stranger's node."""
    root = read_node(federation.folder / "client-0").root_certificate.read_bytes()
    at, direct = f"127.0.0.1:{federation.fleet}", [("grpc.enable_http_proxy", 0)]
    request = fleet_pb2.RegisterNodeFleetRequest(public_key=b"made up")
    for channel, code in (
        (grpc.secure_channel(at, grpc.ssl_channel_credentials(root), direct), "UNAUTHENTICATED"),
        (grpc.insecure_channel(at, direct), "UNAVAILABLE"),
    ):
        with channel, pytest.raises(grpc.RpcError) as caught:
            FleetStub(channel).RegisterNode(request, timeout=20)
        assert caught.value.code().name == code, caught.value
    assert not federation.nodes()


def engram(*words):
    return [sys.executable, "-m", "engram", *map(str, words)]


def test_the_commands(tmp_path):
    federation = Federation(tmp_path / "fed", 2)
    ports = ("--control", federation.at)
    argv = engram("superlink", federation.server, *ports)
    launch = Launch(argv, dict(os.environ) | {"PYTHONPATH": str(source_root())}, tmp_path)
    with running(launch, tmp_path / "superlink.log") as superlink:
        wait_for(federation.answers, 60, "the SuperLink's Control API")
        assert f"clients at 127.0.0.1:{federation.fleet}" in superlink.said()
        assert "engram.link.server.superlink" in " ".join(psutil.Process(superlink.pid).cmdline())
        options = {"env": launch.env, "cwd": tmp_path, "capture_output": True, "text": True}
        second = subprocess.run(argv, **options, timeout=60, check=False)
        assert second.returncode == 2
        assert second.stderr == (
            f"engram: port {federation.fleet} is taken: end what listens there, or give another "
            "one with --fleet\n"
        )
        argv = engram("register", federation.server, *ports)
        done = subprocess.run(argv, **options, timeout=60, check=True)
        assert done.stdout.startswith("client-0: registered as ")
    with federation.superlink():  # which knows its clients when it starts again
        wait_for(federation.answers, 60, "the SuperLink's Control API")
        again = list(register_clients(federation.server, control=federation.at))
        assert again == [("client-0", None)]


# --- Strangers that are resident nodes --------------------------------------------------------


def resident(folder, tmp_path):
    launch = program("engram", "node", str(folder), home=tmp_path / "flwr")
    return running(launch, tmp_path / "node.log")


def copied(federation, client, tmp_path, **changes):
    """A copy of a client's folder, with other settings or files."""
    own = tmp_path / "client"
    shutil.copytree(federation.folder / f"client-{client}", own)
    settings = read_settings(own / "node.toml")
    settings |= {key: value for key, value in changes.items() if key in settings}
    lines = (f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    (own / "node.toml").write_text("".join(lines))
    return own


def ends_with(node, says, seconds):
    assert node.ended(seconds) == 2
    (line,) = (line for line in node.said().splitlines() if says in line)
    assert line.startswith("engram: ")
    assert "Traceback" not in node.said()


def test_a_resident_node_that_is_not_registered_is_refused(federation, tmp_path):
    with resident(copied(federation, 2, tmp_path), tmp_path) as node:
        ends_with(node, "Either its key is not registered (on the server: engram register)", 60)


def test_two_nodes_with_one_key_are_one_too_many(federation, tmp_path):
    with federation.node(tmp_path, 1):
        wait_for(federation.nodes, 30, "client-1 online")
        with resident(copied(federation, 1, tmp_path), tmp_path) as node:
            ends_with(node, "or another node uses it", 60)


def test_a_resident_node_asks_the_superlink_for_its_certificate(federation, tmp_path):
    init_federation(tmp_path / "other", clients=1, hosts=[], superlink="127.0.0.1:9092", days=1)
    own = copied(federation, 0, tmp_path)
    shutil.copy(tmp_path / "other" / "client-0" / "ca.crt", own / "ca.crt")
    with resident(own, tmp_path) as node:
        ends_with(node, "is not vouched for by", 30)


def test_a_resident_node_without_tls_is_told_that_there_is_some(federation, tmp_path):
    with resident(copied(federation, 0, tmp_path, insecure=True), tmp_path) as node:
        ends_with(node, "speaks TLS, which this node was set up without", 30)


def test_a_superlink_without_tls_takes_whoever_comes_and_no_node_with_tls(federation, tmp_path):
    plain = Federation(tmp_path / "plain", 1, insecure=True)
    with plain.superlink():
        wait_for(plain.answers, 30, "the SuperLink's Control API")
        with plain.supernode(tmp_path, "--insecure"):
            wait_for(plain.nodes, 30, "a node online: whoever comes is taken")
        own = copied(federation, 0, tmp_path, superlink=f"127.0.0.1:{plain.fleet}")
        with resident(own, tmp_path) as node:
            wait_for(lambda: "does not speak TLS" in node.said(), 30, "the node's complaint")
            assert node.process.poll() is None  # a SuperLink may have its port later


def test_a_resident_node_that_died_is_back_at_once(federation, tmp_path):
    own = copied(federation, 0, tmp_path)
    told = f"node {dict(federation.registered)['client-0']} is connected"
    with resident(own, tmp_path) as node:
        wait_for(lambda: told in node.said(), 30, "client-0 online")
        os.killpg(node.pid, signal.SIGKILL)
    start = time.monotonic()
    with resident(own, tmp_path) as node:
        wait_for(lambda: told in node.said(), 30, "client-0 back")
    assert time.monotonic() - start < 15  # the SuperLink still takes it for alive, for 20 s
