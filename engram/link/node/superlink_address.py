"""A node's way to its server, which may move, and may get a new authority."""

import os
from collections.abc import Callable
from logging import getLogger

import grpc

from engram.link.addresses import direct, parse_address
from engram.link.announcement import (
    LEAST,
    Told,
    least_key,
    moved_node,
    new_address,
    new_authorities,
    proven_serial,
)
from engram.link.credentials import NodeCredentials, key_host
from engram.link.key_tls import node_credentials
from engram.link.transport import Options
from engram.settings.errors import Refused
from engram.settings.files import replace_file

_log = getLogger("flwr.engram")


class Way:
    """Addresses of a server, and its announcements.

    Announcements (``engram/link/announcement.py``) are written into the client's folder, and
    hold from the next connection on. Where that cannot be written, this process alone knows them.

    Args:
        credentials: The client's.

    Attributes:
        credentials: As given, with the address of the last connection.
    """

    def __init__(self, credentials: NodeCredentials) -> None:
        self.credentials = self._known = credentials
        self._roots: bytes | None = None
        least = credentials.private_key.with_name(LEAST)
        said = least.read_bytes() if least.exists() else b""
        self._serial = proven_serial(said, self.roots())
        self._tries = 0

    def dial(self) -> tuple[str, grpc.ChannelCredentials, Options]:
        """Returns the address, the credentials and the options of the next connection."""
        found, name = self.next(), self.key_host
        options = [("grpc.ssl_target_name_override", name)] if name else []
        return found.superlink, node_credentials(found, self.roots()), options

    def next(self) -> NodeCredentials:
        """Credentials for the next try: in turn with the present and the former address."""
        known, again = self._known, self._tries % 2
        self._tries += 1
        self.credentials = (
            known._replace(superlink=known.former) if known.former and again else known
        )
        host = parse_address(self.credentials.superlink, "superlink").host
        os.environ.update(direct(os.environ, host))  # before gRPC reads them
        return self.credentials

    def hear(self, told: Told) -> None:
        """Follows the server's announcement; the next try begins at its address of today."""
        self._tries = 0
        self._move(told)
        self._trust(told)
        self._require(told)

    def roots(self) -> bytes:
        """Returns the certificates of the authorities to trust, PEM."""
        return self._roots or self._known.root_certificate.read_bytes()

    @property
    def key_host(self) -> str:
        """The name that the server's certificate must have; "" for that of its address."""
        return key_host(self._serial) if self._serial else ""

    def _require(self, told: Told) -> None:
        least = least_key(told)
        if (serial := proven_serial(least, self.roots())) > self._serial:
            self._serial = serial
            _log.info(
                "the server has a new key: from the next connection on, the former is refused"
            )
            self._write(LEAST, lambda: least)

    def _move(self, told: Told) -> None:
        known, folder = self._known, self._known.private_key.parent
        address = new_address(told, known.superlink)
        if address is None:
            return
        self._known = known._replace(superlink=address, former=known.superlink)
        _log.info("the server moves to %s: the next connection is made there", address)
        self._write("node.toml", lambda: moved_node(folder, address, known.superlink))

    def _trust(self, told: Told) -> None:
        found = new_authorities(told, self.roots())
        if found is None:
            return
        self._roots = found
        _log.info("the federation's authority has a successor, for which it vouches: trusted now")
        self._write(self._known.root_certificate.name, lambda: found)

    def _write(self, name: str, content: Callable[[], bytes]) -> None:
        path = self._known.private_key.parent / name
        try:
            replace_file(path, content())
        except (Refused, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            _log.warning(
                "%s cannot be written (%s): bring it before this node starts again", path, why
            )
