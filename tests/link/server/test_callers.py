"""Whose connections are: by tables like the kernel's, and by the kernel's own."""

import contextlib
import json
import os
import socket
import struct
import sys
import threading
import time
from ipaddress import ip_address

import httpx
import pytest
import uvicorn

from engram.link.addresses import Address
from engram.link.server.control_access import SOCKETS, is_from, private
from engram.link.server.superlink import serve
from tests.processes.support import free_port
from tests.samples import entry

CLIENT, SERVER = Address("127.0.0.1", 40000), Address("127.0.0.1", 8000)
HEADING = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid ...\n"


def digits(address):
    """An address as the kernel writes it, in words of the machine's order."""
    data = ip_address(address.host).packed
    words = struct.unpack(f">{len(data) // 4}I", data)
    return f"{struct.pack(f'={len(words)}I', *words).hex().upper()}:{address.port:04X}"


def row(local=CLIENT, remote=SERVER, state="01", user=1000, inode=4711):
    return (
        f"   0: {digits(local)} {digits(remote)} {state} 00000000:00000000 02:00000A4E 00000000 "
        f"{user:5d}        0 {inode} 2 0000000000000000 20 4 30 10 -1\n"
    )


@pytest.fixture
def asked(tmp_path):
    """Asks whether a connection is user 1000's or root's, where the kernel's tables have rows."""

    def ask(*rows, client=CLIENT, server=SERVER, more=()):
        tables = tmp_path / "tcp", tmp_path / "tcp6"
        for table, lines in zip(tables, (rows, more), strict=True):
            table.write_text(HEADING + "".join(lines))
        return is_from({1000, 0}, client, server, tables)

    return ask


def test_a_loopback_address_is_written_as_the_kernel_does():
    if sys.byteorder == "little":
        assert digits(Address("127.0.0.1", 8000)) == "0100007F:1F40"
        assert digits(Address("::1", 80)) == "00000000000000000000000001000000:0050"


def test_the_user_of_the_other_end_counts(asked):
    for user, let_in in [(1000, True), (0, True), (1001, False), (65534, False)]:
        with entry(user, let_in):
            own_end = row(SERVER, CLIENT, user=1000)
            listening = row(SERVER, Address("0.0.0.0", 0), state="0A")
            assert asked(listening, own_end, row(user=user)) == let_in


def test_nobody_else_is_let_in(asked):
    for rows in [
        [],
        [row(user=0, inode=0)],  # closed by its process: the kernel knows no user any more
        [row(state="06", user=0, inode=0)],
        [row(state="08")],
        [row(SERVER, CLIENT)],
        [row(Address("127.0.0.1", 40001))],
        [row(Address("127.0.0.2", 40000))],
        [row(remote=Address("127.0.0.1", 8001))],
        [row(remote=Address("127.0.0.2", 8000))],
        [row(), row(user=1001)],
    ]:
        with entry(rows):
            assert not asked(*rows)
            assert not asked(more=rows)


def test_ipv6_and_ipv4_in_its_dress(asked):
    client, server = Address("::1", 40000), Address("::1", 8000)
    assert asked(more=[row(client, server)], client=client, server=server)
    assert not asked(more=[row(client, server, user=7)], client=client, server=server)
    dressed = [address._replace(host=f"::ffff:{address.host}") for address in (CLIENT, SERVER)]
    # A server of both kinds sees it so, whichever of the tables it stands in.
    assert asked(row(), client=dressed[0], server=dressed[1])
    assert asked(more=[row(*dressed)], client=dressed[0], server=dressed[1])
    assert not asked(row(user=7), client=dressed[0], server=dressed[1])
    linked = Address("fe80::1", 40000), Address("fe80::2", 8000)
    seen = linked[0]._replace(host="fe80::1%eth0")
    assert asked(more=[row(*linked)], client=seen, server=linked[1])


def test_what_cannot_be_looked_up_is_refused(tmp_path):
    assert not is_from({1000, 0}, CLIENT, SERVER, [tmp_path / "tcp"])


# --- A server --------------------------------------------------------------------------------

needs_linux = pytest.mark.skipif(not SOCKETS[0].is_file(), reason="only Linux has this table")


async def app(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"served"})


@contextlib.contextmanager
def served(monkeypatch, users):
    """Runs ``serve`` in a thread, for some users; yields its address."""
    port, servers = free_port(), []

    def run(app, **options):
        servers.append(uvicorn.Server(uvicorn.Config(app, lifespan="off", **options)))
        servers[0].run()

    monkeypatch.setattr("engram.link.server.superlink.uvicorn.run", run)
    monkeypatch.setattr("engram.link.server.superlink.own_users", lambda: users)
    options = {"host": "127.0.0.1", "port": port, "log_level": "critical"}
    thread = threading.Thread(target=serve, args=(app,), kwargs=options)
    thread.start()
    try:
        while not (servers and servers[0].started):
            time.sleep(0.01)
        yield f"127.0.0.1:{port}"
    finally:
        servers[0].should_exit = True
        thread.join()


@needs_linux
def test_a_server_serves_its_user(monkeypatch):
    with served(monkeypatch, {os.geteuid()}) as address, httpx.Client() as client:
        for _ in range(3):
            assert client.post(f"http://{address}/", content=b"x" * 10**5).text == "served"


@needs_linux
def test_a_server_refuses_everybody_else(monkeypatch):
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    upgrade["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    with served(monkeypatch, {os.geteuid() + 1}) as address:
        for headers in ({}, upgrade):
            answer = httpx.get(f"http://{address}/v1/control/list-runs", headers=headers)
            assert answer.status_code == 403
            reason = json.loads(answer.text)["detail"]
            assert reason.startswith("only the user who started this SuperLink may use its Control")
            assert "\n" not in reason


@needs_linux
def test_everybody_else_is_served_as_a_node_is(monkeypatch):
    with served(monkeypatch, {os.geteuid() + 1}) as address:
        assert httpx.post(f"http://{address}/v1/fleet/pull-messages").text == "served"
        for path in ("/v1/fleet", "/v1/fleets/x", "//v1/fleet/x", "/v1/control/v1/fleet/x"):
            assert httpx.post(f"http://{address}{path}").status_code == 403


@needs_linux
def test_who_calls_is_not_what_a_header_claims(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "engram.link.server.control_access.is_from", lambda *given: asked.append(given)
    )
    with served(monkeypatch, set()) as address, socket.create_connection(address.split(":")) as own:
        claim = b"GET / HTTP/1.1\r\nHost: here\r\nX-Forwarded-For: 127.0.0.1:1234\r\n\r\n"
        own.sendall(claim)
        assert b"403" in own.recv(100)
        here = Address(*own.getsockname()), Address(*own.getpeername())
    assert asked == [(set(), *here)]


def test_a_connection_without_addresses_is_refused():
    class Protocol:
        client = server = None
        app = "the app"

        def connection_made(self, transport):
            self.transport = transport

    connection = private(Protocol, {0})()
    connection.connection_made("pipe")
    assert connection.app != "the app"
    assert connection.transport == "pipe"
