"""A clock that is wrong is told as that, with both times: not as a key or a certificate."""

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.proto.fleet_pb2_grpc import FleetServicer, add_FleetServicer_to_server
from flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor import (
    NodeAuthServerInterceptor,
)

from engram.link.announcement import ENDED
from engram.link.credentials import NodeCredentials
from engram.link.keys import read_node_key
from engram.link.node import fleet
from engram.link.node.fleet import ClockRefused, Fleet, KeyRefused
from engram.link.server.certificates import node_key_files
from engram.link.server.live_certificates import Dated
from engram.wire.clock import TIME, in_words, sent_time
from tests.samples import entry

NOON = datetime(2026, 11, 25, 12, tzinfo=UTC)


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Opens a session with a SuperLink whose clock is ``behind`` the node's by some seconds."""
    (tmp_path / "key").write_bytes(node_key_files("client-0")[0])
    (tmp_path / "key").chmod(0o600)
    servers = []

    def opened(behind, wrap=Dated):
        own = datetime.now(UTC) + timedelta(seconds=behind)
        monkeypatch.setattr(fleet, "now", lambda: own)
        flower = wrap(NodeAuthServerInterceptor(None))  # it asks for a state only after the time
        server = grpc.server(ThreadPoolExecutor(1), interceptors=[flower])
        add_FleetServicer_to_server(FleetServicer(), server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        servers.append(server)
        key = tmp_path / "key"
        with closing(Fleet(NodeCredentials("ward", address, 0, 1, True, key, key, None))) as node:
            node.open(None)

    yield opened
    for server in servers:
        server.stop(None).wait()


def test_a_node_whose_clock_differs_is_told_by_how_much(opened):
    for behind, says in [
        (7 * 60, "7 minutes ahead of the SuperLink's"),
        (-40 * 60, "40 minutes behind the SuperLink's"),
        (-5 * 86400, "5 days behind the SuperLink's"),
        (30, "30 seconds ahead of the SuperLink's"),
    ]:
        with entry(behind, says):
            with pytest.raises(ClockRefused) as caught:
                opened(behind)
            assert f"{says}: set the one that is wrong" in str(caught.value)
            assert "refuses this node: its clock says 20" in str(caught.value)
            assert "key" not in str(caught.value)


def test_without_the_superlinks_time_the_nodes_own_is_told(opened):
    with pytest.raises(ClockRefused, match=r"its clock says .* UTC, and differs: set the one that"):
        opened(600, wrap=lambda flower: flower)


def test_with_a_clock_that_is_right_the_call_goes_on(opened):
    with pytest.raises(KeyRefused, match="not implemented"):
        opened(0)


@pytest.mark.parametrize(
    ("announced", "says"),
    [
        ([(ENDED, "removed")], "this client's key for good, as it is noted as removed: to take"),
        ([], "this node: Method not implemented!"),
    ],
)
def test_a_node_whose_client_is_no_member_any_more_is_told_so(opened, tmp_path, announced, says):
    keys = []

    def said(call, key):
        keys.append(key)
        return announced

    with pytest.raises(KeyRefused, match=re.escape(f"refuses {says}")) as caught:
        opened(0, wrap=lambda flower: Dated(flower, said))
    assert caught.value.for_good == ("for good" in says)
    own = read_node_key(tmp_path / "key").public_key()
    assert keys == [own.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)]


def test_what_is_no_time_is_none():
    for sent in [None, [], [(TIME, "noon")], [(TIME, b"\xff")], [("x", "y")]]:
        with entry(sent):
            assert sent_time(sent) is None
            assert sent_time([(TIME, "2026-11-25T12:00:00")]) is None  # of no time zone
            assert sent_time([(TIME, NOON.isoformat())]) == NOON


def test_a_difference_in_words():
    short = [(0, "0 seconds"), (-119, "119 seconds"), (120, "2 minutes")]
    for seconds, words in [*short, (7200, "2 hours"), (86400, "24 hours"), (-3 * 86400, "3 days")]:
        with entry(seconds):
            assert in_words(timedelta(seconds=seconds)) == words
