"""Connections to the board within bounds: in number, in bytes and in time.

Each connection has a thread of its own while it shakes hands and sends its request, so that one
that is slow, or silent, keeps none of the others waiting. Where too many are open, the one that has
been slow for longest is dropped for the next.
"""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from cheroot.errors import FatalSSLAlert
from cheroot.server import HTTPConnection, HTTPRequest
from cheroot.ssl.builtin import BuiltinSSLAdapter
from cheroot.wsgi import Server

_BODY: Final = 2**24  # bytes of a request's body: of many selected rows
_HEADER: Final = 2**15  # bytes of its lines before the body
_TOGETHER: Final = 128  # connections at once
_EACH: Final = 64  # of one address
_AT_WORK: Final = 8  # requests that are answered at once
_ARRIVING: Final = 15.0  # most seconds until a handshake is done, or a request has arrived
_ANSWERED: Final = 120.0  # most seconds until it is answered
_LOOK: Final = 0.5  # seconds after which late ones are looked for
_PLAIN: Final = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\nThe board speaks https.\n"


class LateHandshake(BuiltinSSLAdapter):
    """TLS with the handshake in the connection's own thread."""

    def wrap(self, sock: socket.socket) -> tuple[ssl.SSLSocket, dict[str, str]]:
        """Returns the socket for TLS, and its entries of the WSGI environment."""
        try:
            made = self.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except OSError as error:  # it has gone already
            raise FatalSSLAlert(*error.args) from error
        return made, {"wsgi.url_scheme": "https", "HTTPS": "on"}


class _Request(HTTPRequest):
    """A request, which is refused without a look at its body."""

    def read_request_headers(self) -> bool:
        """Reads the header; a body must say its length there."""
        read: Callable[[], bool] = super().read_request_headers
        if not read():
            return False
        if self.chunked_read or not self.inheaders.get(b"Content-Length", b"0").isdigit():
            self.simple_response("411 Length Required")
            return False
        return True

    def respond(self) -> None:
        """Answers, beside few others."""
        with self.server.at_work:
            self.conn.enter(busy=True)
            super().respond()

    def send_headers(self) -> None:
        """Closes the connection after a refusal, so that no body is read."""
        if 400 <= int(self.status[:3]) < 500:
            self.close_connection = True
        super().send_headers()


class _Connection(HTTPConnection):
    """A connection that knows since when it has been in its present state."""

    RequestHandlerClass = _Request

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.dropped, self._shaken = False, not isinstance(self.socket, ssl.SSLSocket)
        self.enter(busy=False)

    def enter(self, *, busy: bool) -> None:
        """Notes that a request is being answered from now on, or else awaited."""
        self.busy, self.since = busy, time.monotonic()

    def communicate(self) -> bool:
        """Shakes hands first, if that is to be done, and answers a request."""
        self.enter(busy=False)
        if not self._shaken:
            try:
                self.socket.do_handshake()
            except (OSError, ValueError) as error:  # ValueError: it has been dropped
                if isinstance(error, ssl.SSLError) and error.reason == "HTTP_REQUEST":
                    socket.socket.send(self.socket, _PLAIN)
                return False
            self._shaken = True
        answer: Callable[[], bool] = super().communicate
        keep = answer()
        self.enter(busy=False)
        return keep and not self.dropped

    def drop(self) -> None:
        """Ends it from another thread; reads and writes then fail."""
        self.dropped = True
        with contextlib.suppress(OSError):  # it has ended
            # Not TLS's own shutdown, after which the other thread would go on in plain text.
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes it, and makes room for another."""
        self.server.leave(self)
        super().close()


class BoundedServer(Server):
    """A server that keeps within the bounds of this module."""

    ConnectionClass = _Connection
    max_request_header_size = _HEADER
    max_request_body_size = _BODY

    def __init__(self, at: tuple[str, int], app: Any) -> None:
        super().__init__(
            at, app, numthreads=_TOGETHER, server_name="engram", request_queue_size=_TOGETHER
        )
        self.at_work = threading.BoundedSemaphore(_AT_WORK)
        self._open: set[_Connection] = set()
        self._lock = threading.Lock()

    def process_conn(self, conn: _Connection) -> None:
        """Lets a connection in, in place of a slow one if there are too many."""
        with self._lock:
            new = conn not in self._open
            self._open.add(conn)
            there = [one for one in self._open if not one.dropped]
            same = [one for one in there if one.remote_addr == conn.remote_addr]
            crowd = same if len(same) > _EACH else there if len(there) > _TOGETHER else []
        if new and crowd:
            waiting = [one for one in crowd if not one.busy and one is not conn]
            min(waiting, key=lambda one: one.since, default=conn).drop()
        super().process_conn(conn)

    def leave(self, conn: _Connection) -> None:
        """Forgets a connection that is closed."""
        with self._lock:
            self._open.discard(conn)

    def serve(self) -> None:
        """Serves until it is stopped."""
        threading.Thread(target=self._watch, daemon=True).start()
        super().serve()

    def _watch(self) -> None:
        while self.ready:
            time.sleep(_LOOK)
            now = time.monotonic()
            with self._lock:
                there = [one for one in self._open if not one.dropped]
            for one in there:
                if now - one.since > (_ANSWERED if one.busy else _ARRIVING):
                    one.drop()
