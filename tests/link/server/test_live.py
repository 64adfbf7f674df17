"""A renewed certificate is shown to whoever connects next; a move and a successor are told of."""

import shutil
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from engram.link.announcement import new_address, new_authorities
from engram.link.credentials import read_node
from engram.link.flower import public_key_to_bytes
from engram.link.keys import read_certificate, read_node_key
from engram.link.server.certificates import certificate_pem
from engram.link.server.live_certificates import (
    grpc_credentials,
    live_announcement,
    live_certificate,
    ssl_context,
)
from engram.link.server.renewal import renew_server
from tests.link.server.federations import FED, make

SERVER = FED / "server"
FILES = [SERVER / "server.crt", SERVER / "server.key"]


@pytest.fixture(autouse=True)
def _fed():
    make()


@pytest.fixture
def at_grpc():
    """The port of a gRPC server that shows the live certificate, and says its caller's words."""
    say = grpc.unary_unary_rpc_method_handler(lambda words, context: words)
    handler = grpc.method_handlers_generic_handler("t", {"Say": say})
    server = grpc.server(ThreadPoolExecutor(2), handlers=[handler])
    port = server.add_secure_port("127.0.0.1:0", grpc_credentials(live_certificate(SERVER)))
    server.start()
    yield port
    server.stop(None)


@pytest.fixture
def at_ssl():
    """The port of a server by Python's TLS, as uvicorn's, that shows the live certificate."""

    def made():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*FILES)
        return context

    listening = socket.create_server(("127.0.0.1", 0))
    serving = ssl_context(FILES, made).wrap_socket(listening, server_side=True)

    def serve():
        while True:
            try:
                serving.accept()[0].close()
            except ssl.SSLError:
                continue
            except OSError:
                return

    threading.Thread(target=serve, daemon=True).start()
    yield serving.getsockname()[1]
    serving.close()


def shown(port, host="localhost", root=FED / "client-0/ca.crt"):
    """The certificate that a server shows to a new connection."""
    trust = ssl.create_default_context(cafile=root)
    trust.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as connection,
        trust.wrap_socket(connection, server_hostname=host) as wrapped,
    ):
        return x509.load_der_x509_certificate(wrapped.getpeercert(binary_form=True))


def channel(port, root):
    return grpc.secure_channel(
        f"localhost:{port}", grpc.ssl_channel_credentials(Path(root).read_bytes())
    )


def test_grpc_shows_a_renewed_certificate_and_open_connections_go_on(at_grpc):
    shutil.copy(FED / "ca.crt", "former.crt")
    with channel(at_grpc, "former.crt") as before:
        say = before.unary_unary("/t/Say")
        assert say(b"one", timeout=10) == b"one"
        for more in ({}, {"superlink": "127.0.0.1:9092"}, {"authority": True}):
            renew_server(SERVER, **more)
            assert shown(at_grpc) == read_certificate(FILES[0])
            assert say(b"two", timeout=10) == b"two"
    for root in ("former.crt", SERVER / "ca.crt"):
        with channel(at_grpc, root) as after:
            assert after.unary_unary("/t/Say")(b"three", timeout=10) == b"three"


def test_python_shows_a_renewed_certificate_whether_or_not_a_name_is_asked_for(at_ssl):
    for more in ({}, {"authority": True}):
        renew_server(SERVER, **more)
        for host in ("localhost", "127.0.0.1"):  # an address is not asked for by name
            assert shown(at_ssl, host) == read_certificate(FILES[0])


def test_what_cannot_be_read_changes_nothing(at_grpc, at_ssl, warnings_of_engram):
    before = read_certificate(FILES[0])
    make("other/fed")
    shutil.copy("other/fed/server/server.crt", FILES[0])
    for port in (at_grpc, at_ssl):
        assert shown(port) == before
    FILES[0].write_text("rubbish")
    for port in (at_grpc, at_ssl):
        assert shown(port) == before
    FILES[0].unlink()
    for port in (at_grpc, at_ssl):
        assert shown(port) == before
    assert "what was read before is used on" in warnings_of_engram.text
    renew_server(SERVER)
    for port in (at_grpc, at_ssl):
        assert shown(port) == read_certificate(FILES[0])


def test_nodes_are_told_with_their_heartbeats_and_at_the_beginning():
    shutil.copy(FED / "ca.crt", "former.crt")
    told = live_announcement(SERVER)
    assert not told("/flwr.proto.Fleet/SendNodeHeartbeat", b"")
    renew_server(SERVER, superlink="c.example.org:9092", authority=True)
    for call in ("SendNodeHeartbeat", "ActivateNode"):
        said = dict(told(f"/flwr.proto.Fleet/{call}", b""))
        assert new_address(said, "a.example.org:9092") == "c.example.org:9092"
        trusted = new_authorities(said, Path("former.crt").read_bytes())
        assert trusted == certificate_pem(read_certificate(SERVER / "ca.crt"))
    assert not told("/flwr.proto.Fleet/PullMessages", b"")


def test_a_client_that_was_removed_or_has_left_is_told_so_with_any_call():
    told, clients = live_announcement(SERVER), SERVER / "clients"
    keys = [read_node(FED / f"client-{n}").private_key for n in (0, 1)]
    keys = [public_key_to_bytes(read_node_key(path).public_key()) for path in keys]
    for end in ("removed", "left"):
        for key in keys:
            assert not told("/flwr.proto.Fleet/PullMessages", key)
        moved = (clients / "client-0.pub").rename(clients / f"client-0.17.{end}")
        for call in ("PullMessages", "ActivateNode", "GetRun"):
            assert [*told(f"/flwr.proto.Fleet/{call}", keys[0])] == [("engram-ended", end)]
            assert not told(f"/flwr.proto.Fleet/{call}", keys[1])
        moved.rename(clients / "client-0.pub")
