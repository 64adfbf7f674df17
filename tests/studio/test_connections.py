"""Hostile visitors of the board, before its token: none of them keeps others from it."""

import contextlib
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from flask import Flask, request

from engram.link.addresses import Address
from engram.link.keys import key_pem
from engram.link.server.certificates import certificate_pem, new_authority, new_key
from engram.studio import http_limits
from engram.studio.serving import server_of
from tests.link.wire.processes import free_port
from tests.samples import entry

TOKEN = "t" * 24


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    authority, key = new_authority("board"), new_key()
    signed = authority.sign(key, ["127.0.0.1"], days=1)
    (folder / "key.pem").write_bytes(key_pem(key))
    (folder / "cert.pem").write_bytes(certificate_pem(signed))
    (folder / "ca.pem").write_bytes(certificate_pem(authority.certificate))
    return folder


@contextlib.contextmanager
def served(tls):
    """A board, which answers with the number of bytes that it was sent."""
    app, at = Flask("board"), Address("127.0.0.1", free_port())
    app.add_url_rule("/", "all", lambda: str(len(request.data)), methods=["GET", "POST"])
    files = (tls / "cert.pem", tls / "key.pem") if tls else None
    server = server_of(app, at, files, TOKEN)
    server.prepare()
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield at, server
    finally:
        server.stop()
        thread.join(10)


def asked(at, tls, **given):
    """Asks as an honest visitor does."""
    known = ssl.create_default_context(cafile=tls / "ca.pem") if tls else False
    with httpx.Client(verify=known, trust_env=False, timeout=30) as client:
        address = f"http{'s' if tls else ''}://{at}/"
        cookie = {"Cookie": f"engram-board-{at.port}={TOKEN}"}
        answer = client.request("POST" if given else "GET", address, headers=cookie, **given)
    assert answer.status_code == 200
    return answer.text


def opened(at, count):
    return [socket.create_connection((at.host, at.port), timeout=20) for _ in range(count)]


def said(at, *parts):
    """Sends parts of a request until it is answered; returns the answer, and how many were sent."""
    with socket.create_connection((at.host, at.port), timeout=20) as one:
        sent = 0
        with contextlib.suppress(ConnectionError):
            for part in parts:
                one.sendall(part)
                sent += 1
        answer = b""
        with contextlib.suppress(ConnectionError):
            while more := one.recv(2**16):
                answer += more
        return answer, sent


def test_a_header_is_bounded():
    with served(None) as (at, _):
        for line in (b"GET /", b"GET / HTTP/1.1\r\nX: "):
            answer, sent = said(at, line, *[b"a" * 2**16] * 1000)
            assert sent < 1000
            assert not answer or answer.split()[1] in (b"413", b"414")


def test_a_body_is_not_read_before_the_token():
    for header, status in [
        (b"Content-Length: 3221225472", b"413"),
        (b"Content-Length: -5", b"411"),
        (b"Content-Length: many", b"400"),
        (b"Transfer-Encoding: chunked", b"411"),
        (b"Content-Length: 1000000", b"403"),
    ]:
        with entry(header), served(None) as (at, _):
            start = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + header + b"\r\n\r\n"
            answer, _ = said(at, start)  # and no body: who waited for it would not answer
            assert answer.split()[1] == status
            assert asked(at, None, content=b"a" * 1000) == "1000"


@pytest.mark.parametrize("secure", [False, True])
def test_silent_and_slow_visitors_delay_nobody(secure, tls):
    tls = tls if secure else None
    with served(tls) as (at, server), contextlib.ExitStack() as stack:
        for number, one in enumerate(opened(at, 200)):
            stack.enter_context(one)
            if number % 2:
                one.sendall(b"\x16\x03\x01" if secure else b"GET / HT")
        assert asked(at, tls) == "0"
        alive = [one for one in server._open if not one.dropped]
        assert len(alive) <= http_limits._EACH


def test_many_pages_at_once_are_all_served(tls):
    with served(tls) as (at, _), ThreadPoolExecutor(50) as pool:
        assert list(pool.map(lambda _: asked(at, tls), range(50))) == ["0"] * 50


@pytest.mark.parametrize("secure", [False, True])
def test_what_does_not_arrive_in_time_is_dropped(secure, tls, monkeypatch):
    monkeypatch.setattr(http_limits, "_ARRIVING", 0.0)
    monkeypatch.setattr(http_limits, "_LOOK", 0.01)
    with served(tls if secure else None) as (at, _):
        answer, _ = said(at, b"" if secure else b"GET / HTTP/1.1\r\nX: ")
    assert answer == b"" or b"400" in answer or b"408" in answer


def test_one_address_leaves_room_for_others():
    with served(None) as (at, _), socket.socket() as other, contextlib.ExitStack() as stack:
        other.bind(("127.0.0.2", 0))
        other.settimeout(20)
        other.connect((at.host, at.port))
        for one in opened(at, 100):
            stack.enter_context(one)
        asked(at, None)
        other.sendall(b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
        assert other.recv(100).startswith(b"HTTP/1.1 403")


def test_who_speaks_plain_http_is_told(tls):
    with served(tls) as (at, _):
        answer, _ = said(at, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.endswith(b"The board speaks https.\n")
