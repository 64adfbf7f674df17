"""A node follows a server that moves, and trusts a successor of its federation's authority."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from engram.link.credentials import read_node
from engram.link.frames import pack
from engram.link.keys import read_certificate
from engram.link.node import superlink_address
from engram.link.node.errands import greet
from engram.link.node.refusals import Untrusted
from engram.link.node.superlink_address import Way
from engram.link.server.certificates import certificate_pem
from engram.link.server.live_files import announcements, server_credentials
from engram.link.server.renewal import renew_server
from engram.link.transport import CONNECT, handlers
from tests.link.server.federations import FED, make

NODE, SERVER = FED / "client-0", FED / "server"
OLD, NEW = "a.example.org:9092", "c.example.org:9443"


@pytest.fixture(autouse=True)
def _fed():
    make()
    shutil.copytree(NODE, "kept")


def hear(found):
    """Tells a node what the server announces now."""
    found.hear(announcements(SERVER)())


def tried(found, times):
    return [found.next().superlink for _ in range(times)]


def test_a_node_that_is_told_nothing_stays_where_it_is():
    found, before = Way(read_node(NODE)), (NODE / "node.toml").read_bytes()
    found.hear({})
    hear(found)
    found.hear({"moved": [1], "authorities": {}, "least-key": "x"})
    assert tried(found, 3) == [OLD] * 3
    assert (NODE / "node.toml").read_bytes() == before


def test_a_node_follows_and_tries_the_former_address_in_turn():
    found = Way(read_node(NODE))
    renew_server(SERVER, superlink=NEW)
    hear(found)
    assert tried(found, 3) == [NEW, OLD, NEW]
    found.hear({})
    assert tried(found, 1) == [NEW]
    again = read_node(NODE)
    assert (again.superlink, again.former) == (NEW, OLD)
    assert tried(Way(again), 2) == [NEW, OLD]
    hear(found)
    assert read_node(NODE) == again


def test_a_site_with_a_way_of_its_own_keeps_it():
    path = NODE / "node.toml"
    path.write_text(path.read_text().replace(OLD, "127.0.0.1:19092"))
    found = Way(read_node(NODE))
    renew_server(SERVER, superlink=NEW)
    hear(found)
    assert tried(found, 2) == ["127.0.0.1:19092"] * 2


def test_a_proxy_is_passed_by_at_the_new_address_too(monkeypatch):
    monkeypatch.setenv("no_proxy", "")
    renew_server(SERVER, superlink=NEW)
    found = Way(read_node(NODE))
    hear(found)
    found.next()
    assert "c.example.org" in dict(os.environ)["no_grpc_proxy"].split(",")


def test_a_node_trusts_a_successor_also_after_its_next_start():
    found = Way(read_node(NODE))
    renew_server(SERVER, authority=True)
    shutil.copy("kept/ca.crt", NODE)  # as if it were on another machine
    hear(found)
    new = certificate_pem(read_certificate(SERVER / "ca.crt"))
    assert found.roots() == (NODE / "ca.crt").read_bytes() == new
    read_node(NODE)


def test_a_folder_that_cannot_be_written_is_told_of(monkeypatch, warnings_of_engram):
    def full(path, data):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(superlink_address, "replace_file", full)
    found = Way(read_node(NODE))
    renew_server(SERVER, superlink=NEW, authority=True, another_key=True)
    shutil.copy("kept/ca.crt", NODE)
    hear(found)
    assert tried(found, 2) == [NEW, OLD]
    assert found.key_host == "key-1.invalid"
    assert found.roots() == certificate_pem(read_certificate(SERVER / "ca.crt"))
    said = warnings_of_engram.text
    for name in ("node.toml", "ca.crt", "least.crt"):
        assert f"{name} cannot be written (Read-only file system): bring it" in said


# --- Another key -----------------------------------------------------------------------------


@pytest.fixture
def serve():
    """Starts a server that shows the certificate in a folder; returns its HOST:PORT."""
    servers = []

    def welcome(words, context):
        yield pack("welcome")

    def serve(folder):
        server = grpc.server(ThreadPoolExecutor(1))
        server.add_generic_rpc_handlers((handlers({CONNECT: welcome}),))
        servers.append(server)
        port = server.add_secure_port("127.0.0.1:0", server_credentials(folder))
        server.start()
        return f"127.0.0.1:{port}"

    yield serve
    for server in servers:
        server.stop(None).wait()


def accepts(address):
    """Whether a node trusts the server at an address."""
    try:
        greet(read_node(NODE)._replace(superlink=address))
    except Untrusted:
        return False
    return True


def test_a_stolen_key_is_refused_once_a_node_has_heard_of_the_next(serve):
    shutil.copytree(SERVER, "stolen")
    true, thief = serve(SERVER), serve(Path("stolen"))
    assert accepts(thief)
    renew_server(SERVER, another_key=True)
    assert accepts(true)
    assert accepts(thief)  # nobody has told the node yet
    hear(Way(read_node(NODE)))
    assert Way(read_node(NODE)).key_host == "key-1.invalid"
    assert accepts(true)
    with pytest.raises(Untrusted, match="has a key from before the one that this node has heard"):
        greet(read_node(NODE)._replace(superlink=thief))
    for more in ({}, {"superlink": NEW}, {"authority": True}, {}, {"another_key": True}):
        renew_server(SERVER, **more)
        assert (accepts(true), accepts(thief)) == (True, False)
        hear(Way(read_node(NODE)))
        assert (accepts(true), accepts(thief)) == (True, False)
    assert Way(read_node(NODE)).key_host == "key-2.invalid"


def test_a_node_does_not_go_back_to_an_earlier_key():
    found = Way(read_node(NODE))
    renew_server(SERVER, another_key=True)
    shutil.copy(SERVER / "least.crt", "first.crt")
    renew_server(SERVER, another_key=True)
    hear(found)
    for known in (found, Way(read_node(NODE))):
        shutil.copy("first.crt", SERVER / "least.crt")
        hear(known)
        assert known.key_host == "key-2.invalid"
