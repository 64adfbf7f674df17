"""A node's way to its SuperLink, which may move, and may get a new authority."""

import os
from collections.abc import Callable
from logging import getLogger
from pathlib import Path
from typing import Any

import grpc

from engram.link.addresses import direct, parse_address
from engram.link.announcement import (
    LEAST,
    LEAST_KEY,
    Told,
    moved_node,
    new_address,
    new_authorities,
    proven_serial,
)
from engram.link.credentials import NodeCredentials, key_host
from engram.settings.errors import Refused
from engram.settings.files import replace_file

_log = getLogger("flwr.engram")


class Way(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]  # gRPC has no types
    """Addresses of a SuperLink, and announcements in its answers.

    What it announces (``engram/link/announcement.py``) is written into the client's folder, and
    holds from the next connection on. Where that cannot be written, this process alone knows it.

    Args:
        credentials: The client's.
    """

    def __init__(self, credentials: NodeCredentials) -> None:
        self._known = credentials
        self._told: bytes | None = None
        least = credentials.private_key.with_name(LEAST)
        said = least.read_bytes() if least.exists() else b""
        self._serial = proven_serial(said, self.roots() or b"")
        self._tries = 0

    def next(self) -> NodeCredentials:
        """Credentials for the next try: in turn with the present and the former address."""
        known, again = self._known, self._tries % 2
        self._tries += 1
        if not known.former:
            return known
        at = known.former if again else known.superlink
        os.environ.update(direct(os.environ, parse_address(at, "superlink").host))
        return known._replace(superlink=at)

    def reached(self) -> None:
        """Notes that the SuperLink has answered: the next try begins at its address of today."""
        self._tries = 0

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        """Makes a call, as gRPC's interceptors do, and reads announcements with its answer."""
        answer = continuation(details, request)
        told = dict(answer.trailing_metadata() or ())
        if (root := self._known.root_certificate) is not None:
            self._move(told)
            self._trust(told, root)
            self._require(told)
        return answer

    def roots(self) -> bytes | None:
        """Returns the certificates of the authorities to trust, PEM; None without TLS."""
        root = self._known.root_certificate
        return self._told if root is None or self._told else root.read_bytes()

    @property
    def key_host(self) -> str:
        """The name that the SuperLink's certificate must have; "" for that of its address."""
        return key_host(self._serial) if self._serial else ""

    def _require(self, told: Told) -> None:
        said = told.get(LEAST_KEY)
        least = said if isinstance(said, bytes) else b""
        if (serial := proven_serial(least, self.roots() or b"")) > self._serial:
            self._serial = serial
            _log.info("the SuperLink has a new key: from the next connection on, none before it")
            self._write(LEAST, lambda: least)

    def _move(self, told: Told) -> None:
        known, folder = self._known, self._known.private_key.parent
        address = new_address(told, known.superlink)
        if address is None:
            return
        self._known = known._replace(superlink=address, former=known.superlink)
        _log.info("the SuperLink moves to %s: the next connection is made there", address)
        self._write("node.toml", lambda: moved_node(folder, address, known.superlink))

    def _trust(self, told: Told, root: Path) -> None:
        found = new_authorities(told, self.roots() or b"")
        if found is None:
            return
        self._told = found
        _log.info("the federation's authority has a successor, for which it vouches: trusted now")
        self._write(root.name, lambda: found)

    def _write(self, name: str, content: Callable[[], bytes]) -> None:
        path = self._known.private_key.parent / name
        try:
            replace_file(path, content())
        except (Refused, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            _log.warning(
                "%s cannot be written (%s): bring it before this node starts again", path, why
            )
