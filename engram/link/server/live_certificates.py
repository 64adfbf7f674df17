"""Files of a server's folder that a SuperLink reads again once they have changed, and announces.

So a renewed certificate is shown to whoever connects next, and a move, or a new authority, is told
to nodes with the next answer; connections that are open go on.
"""

import ssl
from collections.abc import Callable, Sequence
from logging import getLogger
from pathlib import Path
from threading import Lock
from typing import Any, Final, Generic, TypeVar

import grpc

from engram.link.announcement import ENDED, LEAST, Metadata, announcement
from engram.link.credentials import read_federation
from engram.link.flower import PUBLIC_KEY_HEADER
from engram.link.keys import read_certificate, read_server_key, same_key
from engram.link.server.registration import known_keys
from engram.settings.errors import Refused
from engram.wire.clock import TIME, now

_log = getLogger("flwr.engram")
T = TypeVar("T")

_ANNOUNCED: Final = ("/ActivateNode", "/SendNodeHeartbeat")  # calls; each node makes some, often


class Live(Generic[T]):
    """Contents of some files, read again once one of them was replaced; for any thread.

    Args:
        paths: The files.
        read: Reads them.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], T]) -> None:
        self._paths = paths
        self._read = read
        self._lock = Lock()
        self._seen = self._state()
        self._value = read()

    def get(self) -> T:
        """Present contents of the files, or the last ones that could be read."""
        with self._lock:
            if (state := self._state()) != self._seen:
                self._seen = state
                try:
                    self._value = self._read()
                    _log.info("%s is read anew", self._paths[0])
                except (Refused, OSError) as error:
                    _log.warning("what was read before is used on: %s", error)
            return self._value

    def _state(self) -> list[tuple[int, int] | None]:
        return [_state(path) for path in self._paths]


def _state(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def live_certificate(folder: Path) -> Live[tuple[bytes, bytes]]:
    """Returns the private key and the certificates in a server's folder, PEM.

    Raises:
        Refused: They do not belong together, or cannot be read.
    """
    own, private = folder / "server.crt", folder / "server.key"

    def read() -> tuple[bytes, bytes]:
        if not same_key(read_certificate(own).public_key(), read_server_key(private).public_key()):
            raise Refused(f"{own} does not belong to the key in {private}")
        return private.read_bytes(), own.read_bytes()

    return Live([own, private], read)


def live_announcement(folder: Path) -> Callable[[str, bytes], Metadata]:
    """Returns the announcements with the answer to a call, by the call's name and the node's key.

    Args:
        folder: The folder of a server with certificates.
    """
    files = settings, root, least = folder / "federation.toml", folder / "ca.crt", folder / LEAST

    def read() -> Metadata:
        serial = least.read_bytes() if least.exists() else b""
        return announcement(read_federation(settings), root.read_bytes(), serial)

    told = Live(files, read)
    known = Live([folder / "clients"], lambda: known_keys(folder))

    def announced(call: str, key: bytes) -> Metadata:
        end = known.get().get(key, ".pub").rpartition(".")[2]
        if end != "pub":
            return ((ENDED, end),)
        return told.get() if call.endswith(_ANNOUNCED) else ()

    return announced


def grpc_credentials(certificate: Live[tuple[bytes, bytes]]) -> Any:
    """Credentials for gRPC with the present certificate for each new connection."""
    shown = certificate.get()

    def newer() -> Any:
        nonlocal shown
        before, shown = shown, certificate.get()
        return None if shown is before else grpc.ssl_server_certificate_configuration([shown])

    first = grpc.ssl_server_certificate_configuration([shown])
    return grpc.dynamic_ssl_server_credentials(first, newer, require_client_authentication=False)


def ssl_context(files: Sequence[Path], made: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """TLS context with the present certificate for each new connection.

    Args:
        files: Those of the certificate and its key.
        made: Makes a context with what these hold now.
    """
    newest = Live(files, made)
    context = newest.get()
    context.sni_callback = lambda connection, name, _: setattr(connection, "context", newest.get())
    return context


class Dated:
    """Flower's authentication of nodes, with the time in every answer.

    A node's calls are signed together with its time, and Flower refuses those whose time is not
    its own, without saying what its own is.
    """

    def __init__(
        self,
        authentication: Any,
        announced: Callable[[str, bytes], Metadata] = lambda call, key: (),
    ) -> None:
        self._authentication = authentication
        self._announced = announced

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Returns a call's handler, as gRPC asks an interceptor for it."""
        handler = self._authentication.intercept_service(continuation, details)
        if handler is None or handler.unary_unary is None:
            return handler

        def answer(request: Any, context: Any) -> Any:
            key = dict(details.invocation_metadata or ()).get(PUBLIC_KEY_HEADER, b"")
            told = self._announced(details.method, key)
            context.set_trailing_metadata(((TIME, now().isoformat()), *told))
            return handler.unary_unary(request, context)

        return handler._replace(unary_unary=answer)
