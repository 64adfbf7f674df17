"""Files of a server's folder that a server reads again once they have changed.

So a renewed certificate is shown, and a new member let in, with the next connection; a move, or a
new authority, is told to nodes that are connected; and connections that are open go on.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from logging import getLogger
from pathlib import Path
from threading import Lock
from typing import Final, Generic, TypeVar

import grpc

from engram.link.announcement import LEAST, announcement
from engram.link.credentials import read_federation
from engram.link.key_tls import anchor
from engram.link.keys import read_certificate, read_server_key, same_key
from engram.link.server.certificates import new_key
from engram.link.server.registration import Clients, roll, set_aside
from engram.settings.errors import Refused

_log = getLogger("flwr.engram")
T = TypeVar("T")

_TICK: Final = 2 * 10**7  # ns within which two changes may bear the same time
_LOOK: Final = 1.0  # seconds between looks at all files of a folder


class Live(Generic[T]):
    """Contents of some files, read again once one of them was replaced; for any thread.

    Args:
        paths: The files; of a folder, its files count.
        read: Reads them.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], T]) -> None:
        self._paths = paths
        self._read = read
        self._lock = Lock()
        self._entries, self._next_look = list[tuple[int, int]](), 0.0
        self._seen = self._state()
        self._value = read()
        self._fault = ""

    def get(self) -> T:
        """Present contents of the files, or the last ones that could be read.

        The same object as before, as long as they are equal.
        """
        with self._lock:
            if not (state := self._state()) or state != self._seen:
                self._seen, fault = state, ""
                try:
                    if (value := self._read()) != self._value:
                        self._value = value
                except (Refused, OSError) as error:
                    if (fault := str(error)) != self._fault:
                        _log.warning("what was read before is used on: %s", fault)
                self._fault = fault
            return self._value

    def _state(self) -> list[tuple[int, int]]:
        """Returns the files' times and numbers; empty if a change may leave them as they are."""
        if (now := time.monotonic()) >= self._next_look:  # a file of a folder may be written anew
            self._next_look = now + _LOOK
            with contextlib.suppress(OSError):
                folders = (path for path in self._paths if path.is_dir())
                self._entries = [_state(each) for path in folders for each in path.iterdir()]
        found, at = [*map(_state, self._paths), *self._entries], time.time_ns()
        return found if all(abs(at - changed) > _TICK for changed, _ in found) else []


def _state(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_ino


class Roll:
    """The members of a federation, and the keys that it refuses for good, as its files are now."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clients = _live_roll(folder)

    def name(self, fingerprint: str) -> str | None:
        """Returns the member that has a key, such as ``client-3``; None if none has."""
        return self.holders().get(fingerprint)

    def holders(self) -> dict[str, str]:
        """Returns the members by their keys."""
        listed = self._clients.get().keys.items()
        return {key: f"client-{each.client}" for key, each in listed if not each.end}

    def ended(self, fingerprint: str) -> str:
        """Returns why a key is refused for good, ``removed`` or ``left``; else empty."""
        listed = self._clients.get().keys.get(fingerprint)
        return listed.end if listed else ""

    def names(self) -> frozenset[str]:
        """Returns the names of all members."""
        return frozenset(self.holders().values())

    def leave(self, name: str) -> None:
        """Notes that a member's site has left: its key is refused from now on.

        Raises:
            Refused: If it cannot be noted.
        """
        set_aside(self._folder, name, "left")


def _live_roll(folder: Path) -> Live[Clients]:
    return Live([folder / "clients"], lambda: roll(folder))


def announcements(folder: Path) -> Callable[[], Mapping[str, str]]:
    """Returns a function that returns the announcements to nodes as they are by then."""
    files = settings, root, least = folder / "federation.toml", folder / "ca.crt", folder / LEAST

    def read() -> dict[str, str]:
        serial = least.read_text(errors="replace") if least.exists() else ""
        return announcement(read_federation(settings), root.read_text(errors="replace"), serial)

    return Live(files, read).get


def server_credentials(folder: Path) -> grpc.ServerCredentials:
    """Returns a server's credentials: its certificate, and those it lets in, at each connection.

    That are members, and clients whose keys are refused for good, who can so be told why.

    Raises:
        Refused: Its certificate and key do not belong together, or cannot be read.
    """
    own, private, clients = folder / "server.crt", folder / "server.key", folder / "clients"
    nobody, made = anchor("nobody", new_key().public_key()), dict[tuple[str, int], bytes]()

    def read() -> tuple[bytes, bytes]:
        if not same_key(read_certificate(own).public_key(), read_server_key(private).public_key()):
            raise Refused(f"{own} does not belong to the key in {private}")
        return private.read_bytes(), own.read_bytes()

    def anchors(listed: Clients) -> bytes:
        keys = {(print_, each.client): each.key for print_, each in listed.keys.items()}
        for each in keys.keys() - made.keys():
            made[each] = anchor(f"client-{each[1]}", keys[each])
        return b"".join([nobody, *(made[each] for each in keys)])  # gRPC wants one at least

    certificate, known = Live([own, private], read), _live_roll(folder)
    shown = certificate.get(), known.get()

    def present() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([shown[0]], anchors(shown[1]))

    def newer() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        before, shown = shown, (certificate.get(), known.get())
        if shown == before:
            return None
        _log.info("%s and %s are read anew", own, clients)
        return present()

    return grpc.dynamic_ssl_server_credentials(present(), newer, require_client_authentication=True)
