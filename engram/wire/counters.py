"""Counters of a long-lived process, and its signs of life, served for Prometheus on loopback."""

import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from engram.settings.errors import Refused

_HOST: Final = "127.0.0.1"
_PACKAGE: Final = "prometheus_client"
_SILENT: Final = 60.0  # seconds without a sign of life after which something is wrong


class Counters:
    """Counts that only grow, from several threads.

    ``meanings`` are their names, in Prometheus's manner, and a sentence about each.
    """

    def __init__(self, meanings: Mapping[str, str]) -> None:
        self._meanings = dict(meanings)
        self._counts = dict.fromkeys(meanings, 0.0)
        self._adding = threading.Lock()

    def add(self, name: str, value: float = 1.0) -> None:
        """Adds to a count."""
        with self._adding:
            self._counts[name] += value

    def counts(self) -> dict[str, float]:
        """Returns the counts."""
        with self._adding:
            return dict(self._counts)

    def collect(self) -> Iterable[Any]:
        """Yields the counts as Prometheus's library collects them."""
        from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415 - an extra

        for name, value in self.counts().items():
            yield CounterMetricFamily(f"engram_{name}", self._meanings[name], value=value)


def beat(path: Path) -> None:
    """Touches a file that health checks look at."""
    with suppress(OSError):  # go on if the disk is full
        path.touch()


def silence(path: Path, what: str) -> str:
    """Describes the age of a file that health checks touch; "" below a minute."""
    with suppress(OSError):
        seconds = time.time() - path.stat().st_mtime
        return f"{what} for {seconds:.0f} s" if seconds > _SILENT else ""
    return f"{what} yet"


class _Silent(WSGIRequestHandler):
    timeout = 5.0  # seconds after which a connection is cut off, whatever it says

    def setup(self) -> None:
        """Begins to answer a connection, and to count its seconds."""
        super().setup()
        self._end = threading.Timer(self.timeout, self._cut_off)
        self._end.daemon = True
        self._end.start()

    def finish(self) -> None:
        self._end.cancel()
        super().finish()

    def _cut_off(self) -> None:
        with suppress(OSError):  # it has gone
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as it is called
        """Logs nothing: a scrape is no event."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each connection, so that nobody waits for another."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs nothing: a broken connection is no event."""


def serve_counters(
    counters: Counters, port: int, fault: Callable[[], str] = lambda: ""
) -> WSGIServer | None:
    """Serves ``/metrics`` and ``/healthz`` on the loopback interface, in a thread.

    ``fault`` describes a fault of the process, or is empty; ``/healthz`` then has status 503
    and this line.

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
