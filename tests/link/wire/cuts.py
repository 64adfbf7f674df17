"""A proxy on this machine that passes TLS on, record by record, and can cut what passes."""

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable

from tests.link.wire.processes import free_port


class Proxy:
    """Passes connections on to a port of this machine.

    Attributes:
        port: Where it listens.
        passed: Bytes that have passed, in both directions.
        watch: Called after each record, with whether it went to the server; if it raises
            ``OSError``, the connection ends.
    """

    watch: Callable[[bool], None]

    def __init__(self, to: int) -> None:
        self._to, self.passed, self._cut_until, self._over = to, 0, 0.0, False
        self.watch = lambda up: None
        self.port = free_port()
        self._listening = socket.create_server(("127.0.0.1", self.port))
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, seconds: float, *, reset: bool = True) -> None:
        """Ends all connections, or only holds them, and lets none through for a while."""
        self._cut_until = time.monotonic() + seconds
        for each in [*self._open] if reset else ():
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        time.sleep(seconds)

    def close(self) -> None:
        """Ends."""
        self._over = True
        self._listening.close()
        for each in [*self._open]:
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                threading.Thread(target=self._pass, args=(near,), daemon=True).start()

    def _pass(self, near: socket.socket) -> None:
        with contextlib.suppress(OSError), near:
            while self._is_cut():
                time.sleep(0.05)
            with (
                socket.create_connection(("127.0.0.1", self._to)) as far,
                selectors.DefaultSelector() as both,
            ):
                self._open |= {near, far}
                for one, other in ((near, far), (far, near)):
                    both.register(one, selectors.EVENT_READ, other)
                while not self._over:
                    if self._is_cut():
                        time.sleep(0.05)
                        continue
                    for key, _ in both.select(0.2):
                        data = _record(key.fileobj)  # type: ignore[arg-type] # a socket
                        key.data.sendall(data)
                        self.passed += len(data)
                        self.watch(key.fileobj is near)

    def _is_cut(self) -> bool:
        return time.monotonic() < self._cut_until


def _record(of: socket.socket) -> bytes:
    """Returns the next record of a connection.

    Raises:
        ConnectionError: It has ended.
    """
    header = _exactly(of, 5)
    return header + _exactly(of, int.from_bytes(header[3:]))


def _exactly(of: socket.socket, size: int) -> bytes:
    data = of.recv(size, socket.MSG_WAITALL)
    if len(data) < size:
        raise ConnectionResetError
    return data
