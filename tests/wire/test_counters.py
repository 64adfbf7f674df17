"""Counters of a process and its health, as Prometheus scrapes them."""

import contextlib
import socket

import httpx
import pytest

from engram.settings.errors import Refused
from engram.wire import counters as module
from engram.wire.counters import Counters, serve_counters
from tests.link.wire.processes import free_port


def test_counts_and_health_are_served_on_loopback_alone():
    counters, fault = Counters({"rounds": "Rounds so far"}), [""]
    server = serve_counters(counters, port := free_port(), lambda: fault[0])
    try:
        assert server.server_address == ("127.0.0.1", port)
        counters.add("rounds")
        counters.add("rounds", 2)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            told = client.get("/metrics").text
            assert "# HELP engram_rounds_total Rounds so far\n" in told
            assert "engram_rounds_total 3.0\n" in told
            assert (client.get("/healthz").status_code, client.get("/healthz").text) == (
                200,
                "ok\n",
            )
            fault[0] = "nothing heard"
            answer = client.get("/healthz")
            assert (answer.status_code, answer.text) == (503, "nothing heard\n")
            assert client.get("/other").status_code == 404
        with pytest.raises(Refused, match=rf"--metrics-port {port} cannot be used"):
            serve_counters(counters, port)
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("sent", [b"", b"GET /heal", b"GET /healthz HTTP/1.1\r\nX: "])
def test_who_connects_and_says_nothing_keeps_no_other_waiting_and_is_cut_off(monkeypatch, sent):
    server = serve_counters(Counters({}), port := free_port())

    def silent():
        one = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        with contextlib.suppress(ConnectionError):
            one.sendall(sent)
        return one

    def is_cut_off(one):
        with contextlib.suppress(ConnectionError):
            return one.recv(1) == b""
        return True

    try:
        with contextlib.ExitStack() as stack:
            monkeypatch.setattr(module._Silent, "timeout", 600.0)
            for _ in range(20):
                silent()
            answer = httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False, timeout=60)
            assert answer.text == "ok\n"
            monkeypatch.setattr(module._Silent, "timeout", 0.01)
            assert all(is_cut_off(silent()) for _ in range(20))
    finally:
        server.shutdown()
        server.server_close()


def test_without_a_port_nothing_is_served_and_without_the_package_a_port_is_refused(monkeypatch):
    assert serve_counters(Counters({}), 0) is None
    monkeypatch.setattr(module, "_PACKAGE", "no_such_package")
    with pytest.raises(Refused, match=r"pip install 'engram\[operate\]'"):
        serve_counters(Counters({}), 1)
