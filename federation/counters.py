"""Counters of a long-lived process and its health, served for Prometheus on loopback."""

import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from federation.errors import Refused

_HOST: Final = "127.0.0.1"
_PACKAGE: Final = "prometheus_client"
_SECONDS: Final = 5.0  # that a connection may take


class Counters:
    """Counts that only grow, from several threads.

    Args:
        meanings: The counts' names, in Prometheus's manner, and a sentence about each.
    """

    def __init__(self, meanings: Mapping[str, str]) -> None:
        self._meanings = dict(meanings)
        self._counts = dict.fromkeys(meanings, 0.0)
        self._adding = threading.Lock()

    def add(self, name: str, value: float = 1.0) -> None:
        """Adds to a count."""
        with self._adding:
            self._counts[name] += value

    def collect(self) -> Iterable[Any]:
        """Yields the counts as Prometheus's library collects them."""
        from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415 - an extra

        with self._adding:
            counts = dict(self._counts)
        for name, value in counts.items():
            yield CounterMetricFamily(f"engram_{name}", self._meanings[name], value=value)


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as it is called
        """Logs nothing: a scrape is no event."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each connection, which is cut off after some seconds, whatever it sends."""

    daemon_threads = True
    request_queue_size = 128

    def finish_request(self, request: Any, client_address: Any) -> None:
        def cut_off() -> None:
            with suppress(OSError):  # it has ended meanwhile
                request.shutdown(socket.SHUT_RDWR)

        end = threading.Timer(_SECONDS, cut_off)
        end.daemon = True
        end.start()
        try:
            super().finish_request(request, client_address)
        finally:
            end.cancel()


def serve_counters(
    counters: Counters, port: int, fault: Callable[[], str] = lambda: ""
) -> WSGIServer | None:
    """Serves ``/metrics`` and ``/healthz`` on the loopback interface, in a thread.

    Args:
        counters: The counts.
        port: The port; 0 for none.
        fault: Says what is wrong with the process; "" if nothing is. ``/healthz`` then has status
            503 and this line.

    Returns:
        The server; None without a port.

    Raises:
        Refused: The package is not installed, or the port is taken.
    """
    if not port:
        return None
    if find_spec(_PACKAGE) is None:
        raise Refused(f"--metrics-port needs {_PACKAGE}: pip install 'engram[operate]'")
    from prometheus_client import CollectorRegistry, make_wsgi_app  # noqa: PLC0415 - an extra

    registry = CollectorRegistry()
    registry.register(counters)
    metrics = make_wsgi_app(registry)

    def answer(request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if request["PATH_INFO"] == "/metrics":
            found: Iterable[bytes] = metrics(request, start)
            return found
        status, said = "404 Not Found", "there are /metrics and /healthz"
        if request["PATH_INFO"] == "/healthz":
            said = fault()
            status = "503 Service Unavailable" if said else "200 OK"
        start(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{said or 'ok'}\n".encode()]

    try:
        server = make_server(_HOST, port, answer, _Server, _Silent)
    except OSError as error:
        raise Refused(f"--metrics-port {port} cannot be used: {error.strerror}") from error
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
