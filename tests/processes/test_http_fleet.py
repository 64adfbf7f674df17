"""A real SuperLink whose Flower serves nodes over HTTP, too: what it takes of raw calls."""

import base64
import http.client
import ssl
from datetime import UTC, datetime

import pytest

from engram.link.credentials import read_node, read_server
from engram.link.flower import (
    fleet_pb2,
    message_pb2,
    node_pb2,
    nodes_over_http,
    public_key_to_bytes,
    sign_message,
)
from engram.link.keys import read_node_key
from engram.link.server.certificates import node_key_files
from engram.link.server.identity import init_federation
from engram.link.server.launch import superlink_command
from engram.link.server.registration import register_clients
from engram.wire.clock import now
from tests.processes.support import free_port, running, wait_for

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not nodes_over_http(), reason="this Flower serves nodes over gRPC alone"),
]
LARGEST = 2**24


class SuperLink:
    """A SuperLink with an open Control API, of a federation of two clients, and calls to it."""

    def __init__(self, folder):
        self.folder, self.server, self.port = folder, folder / "server", free_port()
        fleet = f"127.0.0.1:{free_port()}"
        init_federation(folder, clients=2, hosts=[], superlink=fleet, days=1)
        self.at = f"127.0.0.1:{self.port}"
        self.launch = superlink_command(self.server, control=self.at, open_control=True)
        tls = read_server(self.server).tls
        self.trust = ssl.create_default_context(cafile=tls.root_certificate)

    def key(self, client):
        return read_node_key(read_node(self.folder / f"client-{client}").private_key)

    def send(self, path, body, headers=None, *, length=None):
        """Posts a call; returns its status, and its answer's bytes."""
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=20, context=self.trust
        )
        kind = {"Content-Type": "application/protobuf"} | (headers or {})
        if length is not None:
            kind["Content-Length"] = str(length)
        try:
            connection.request("POST", f"/v1/fleet/{path}", body, kind)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def call(self, key, path, request):
        return self.send(path, request.SerializeToString(), signed(key))


def signed(key, time=None):
    """The headers by which a node says who it is."""
    time = (time or now()).isoformat()
    signature = sign_message(key, time.encode())
    return {
        "flwr-public-key": base64.b64encode(public_key_to_bytes(key.public_key())).decode(),
        "flwr-signature": base64.b64encode(signature).decode(),
        "flwr-timestamp": time,
    }


@pytest.fixture(scope="module")
def superlink(tmp_path_factory):
    made = SuperLink(tmp_path_factory.mktemp("deployed") / "fed")
    with running(made.launch, made.folder / "superlink.log") as process:
        made.said = process.said
        wait_for(lambda: "Uvicorn running" in process.said(), 120, "the SuperLink")
        assert len(list(register_clients(made.server, control=made.at))) == 2
        yield made


@pytest.fixture(scope="module")
def nodes(superlink):
    """Both clients' keys and nodes, which are online."""
    found = []
    for key in (superlink.key(0), superlink.key(1)):
        request = fleet_pb2.ActivateNodeRequest(
            public_key=public_key_to_bytes(key.public_key()), heartbeat_interval=30
        )
        status, answer = superlink.call(key, "activate-node", request)
        assert status == 200, answer
        found.append((key, fleet_pb2.ActivateNodeResponse.FromString(answer).node_id))
    return found


def test_a_call_that_no_node_has_signed_is_refused_before_its_body_comes(superlink, tmp_path):
    (tmp_path / "key").write_bytes(node_key_files("client-9")[0])
    (tmp_path / "key").chmod(0o600)
    stranger, old = read_node_key(tmp_path / "key"), datetime(2026, 1, 1, tzinfo=UTC)
    forged = signed(superlink.key(0)) | {"flwr-signature": signed(stranger)["flwr-signature"]}
    for headers in ({}, signed(superlink.key(0), old), forged, {"flwr-public-key": "?"}):
        status, answer = superlink.send("push-object", b"", headers, length=10)
        assert (status, b"only a node of this SuperLink" in answer) == (401, True), answer
    status, answer = superlink.send("push-object", b"", signed(stranger), length=10)
    assert (status, b"its key is not registered" in answer) == (401, True)


def test_a_call_that_is_too_large_is_refused_before_its_body_comes(superlink):
    headers = signed(superlink.key(0))
    status, answer = superlink.send("push-object", b"", headers, length=LARGEST + 1)
    assert (status, b"at most 16777216 bytes" in answer) == (413, True)


def test_a_call_of_unknown_length_is_read_to_the_limit(superlink):
    chunks = (bytes(2**20) for _ in range(LARGEST // 2**20 + 1))
    status, answer = superlink.send("push-object", chunks, signed(superlink.key(0)))
    assert (status, b"at most 16777216 bytes" in answer) == (413, True)


def test_a_node_speaks_for_itself_alone(superlink, nodes):
    (key, node), (_, other) = nodes
    assert node != other
    request = fleet_pb2.PullMessagesRequest(node=node_pb2.Node(node_id=other))
    assert superlink.call(key, "pull-messages", request)[0] == 401
    request.node.node_id = node
    assert superlink.call(key, "pull-messages", request)[0] == 200


def test_replies_pass_the_same_checks_as_by_grpc(superlink, nodes):
    (key, node), _ = nodes
    header = message_pb2.Message(
        metadata=message_pb2.Metadata(message_id="a", src_node_id=node + 1, reply_to_message_id="q")
    )
    request = fleet_pb2.PushMessagesRequest(
        node=node_pb2.Node(node_id=node),
        messages_list=[header],
        message_object_trees=[message_pb2.ObjectTree(object_id="a")],
    )
    status, answer = superlink.call(key, "push-messages", request)
    assert (status, b"a node must answer, and in its own name" in answer) == (403, True)
    assert f"the reply of node {node} is refused" in superlink.said()
    part = message_pb2.PushObjectRequest(
        node=node_pb2.Node(node_id=node), run_id=1, object_id="x", object_content=b"y"
    )
    status, answer = superlink.call(key, "push-object", part)
    assert (status, b"a part must belong to the node's last reply" in answer) == (403, True)
