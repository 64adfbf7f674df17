"""Handshakes of a starting node with servers that are none, or another one."""

import datetime
import socket
import ssl
import struct
import threading
from pathlib import Path

import pytest

from engram.link.credentials import NodeCredentials
from engram.link.keys import key_pem
from engram.link.node import errands, tls_check
from engram.link.node.errands import greet
from engram.link.node.refusals import ClockRefused, KeyRefused, Unreachable, Untrusted
from engram.link.server.certificates import (
    certificate_pem,
    new_authority,
    new_key,
    node_key_files,
)
from tests.samples import entry

OWN, OTHER, KEY = new_authority("ward"), new_authority("ward"), new_key()


def certificate(authority=OWN, hosts=("127.0.0.1",), begins=0, *, days=10):
    """A server's certificate that is made as many days from now as ``begins`` says."""

    at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=begins)
    return authority.sign(KEY, list(hosts), days, at)


@pytest.fixture
def listen():
    """Starts a listener on loopback that does something to each connection; returns its address."""
    servers, held = [], []

    def listen(handle):
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                held.append(connection)
                threading.Thread(target=handle, args=(connection,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield listen
    for each in servers + held:
        each.close()


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Has a client greet whatever listens at an address."""
    private, public = node_key_files("client-0")
    files = {"key": private, "pub": public, "ca.crt": certificate_pem(OWN.certificate)}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        (tmp_path / name).chmod(0o600)
    monkeypatch.setattr(errands, "_CALL", 5.0)

    def call(address):
        files = [tmp_path / "key", tmp_path / "pub", tmp_path / "ca.crt"]
        return greet(NodeCredentials("ward", address, 0, 1, *files))

    return call


@pytest.fixture
def with_tls(tmp_path):
    """Returns what answers with a certificate, and then does something with the connection."""

    def with_tls(own, then=lambda connection: connection.recv(2**16)):
        path = tmp_path / "server.pem"
        path.write_bytes(certificate_pem(own) + key_pem(KEY))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        context.set_alpn_protocols(["h2"])

        def handle(connection):
            try:
                with context.wrap_socket(connection, server_side=True) as wrapped:
                    then(wrapped)
            except OSError:
                pass

        return handle

    return with_tls


def reset(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def reset_later(connection):
    connection.recv(16)
    reset(connection)


def close_later(connection):
    connection.recv(2**16)
    connection.close()


def half_close(connection):
    connection.shutdown(socket.SHUT_WR)


def answer_plainly(connection):
    connection.recv(2**16)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4)


def greet_in_http2(connection):
    connection.sendall(bytes.fromhex("000000040000000000"))


def greet_halfway(connection):  # a TLS record of 122 bytes, of which two come
    connection.recv(2**16)
    connection.sendall(bytes.fromhex("160303007a0200"))
    connection.close()


BROKEN = [reset, reset_later, socket.socket.close, close_later, half_close, greet_halfway]


def test_a_connection_that_breaks_is_tried_again_as_is_one_without_tls_which_is_told(listen, call):
    plain = r"does not speak TLS .*\(wrong version number\)"
    says = dict.fromkeys(BROKEN, "does not answer") | {answer_plainly: plain, greet_in_http2: plain}
    for handle, said in says.items():
        with entry(handle), pytest.raises(Unreachable, match=said):
            call(listen(handle))


def test_what_says_nothing_is_tried_again(listen, call, monkeypatch):
    monkeypatch.setattr(tls_check, "_PATIENCE", 0.2)
    monkeypatch.setattr(errands, "_CALL", 0.5)
    for quiet in (lambda connection: None, socket.socket.detach):
        with pytest.raises(Unreachable, match="does not answer"):
            call(listen(quiet))


def test_who_proves_himself_and_then_goes_may_not_know_the_key(listen, call, with_tls):
    with pytest.raises(KeyRefused, match=r"is there, and ends this node's connections\.$"):
        call(listen(with_tls(certificate(), then=lambda c: None)))


def test_a_certificate_that_fails_is_final(listen, call, with_tls):
    for made, says in [
        ({"authority": OTHER}, r"is not vouched for by .*ca\.crt: unable to get local issuer"),
        (
            {"begins": -20},
            r"certificate that expired on 20.* UTC, and this machine's clock says 20.* UTC, 10 "
            "days later: set the clock if it is wrong, or on the server, `engram renew "
            "SERVER_FOLDER` makes a new one",
        ),
        ({"hosts": ["10.9.8.7"]}, r"for other names than 127\.0\.0\.1: .*--host 127\.0\.0\.1`"),
        ({"hosts": ["elsewhere"]}, r"for other names than 127\.0\.0\.1"),
        ({"authority": OTHER, "begins": -20}, "is not vouched for by"),
    ]:
        with entry(made, says), pytest.raises(Untrusted, match=says):
            call(listen(with_tls(certificate(**made))))


def test_a_clock_that_is_behind_may_be_set_later(listen, call, with_tls):
    says = r"is not valid before 20.* UTC, and this machine's clock says 20.* UTC, 20 days earlier:"
    with pytest.raises(ClockRefused, match=f"{says} set the clock that is wrong"):
        call(listen(with_tls(certificate(begins=20))))


def test_a_root_that_went_missing_is_not_the_servers_fault(listen, with_tls):
    address = listen(with_tls(certificate()))
    assert tls_check.find_fault(address, Path("/nowhere/ca.crt")) is None
