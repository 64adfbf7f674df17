"""Authenticates connections to the Control API by the local user who owns them.

Flower's Control API starts programs for anyone who can connect, and the Runtime API beside it hands
out the tokens of running ones. So on a shared host the SuperLink looks up each connection's owner
in the kernel's /proc/net/tcp, and serves its own user and root only. Nobody needs a password.
"""

import os
import sys
from collections.abc import Collection, Iterable, Iterator
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any

from engram.link.addresses import Address, as_ip
from engram.link.server.http_fleet import FLEET, refuse

SOCKETS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""Linux's tables of TCP sockets, with their users."""

_ESTABLISHED = "01"
_REFUSAL = (
    "only the user who started this SuperLink may use its Control API, and only from its machine: "
    "do it as that user there, or start the SuperLink with --open-control"
)


def own_users() -> frozenset[int]:
    """Users served by this process: its own, and root, since root can become any user."""
    return frozenset({os.geteuid(), 0})


def is_from(
    users: Collection[int], client: Address, server: Address, sockets: Iterable[Path] = SOCKETS
) -> bool:
    """Whether a connection's other end belongs to one of these users of this machine.

    ``sockets`` are the kernel's tables; one that cannot be read counts as empty.
    """
    ends, tables = (_comparable(client), _comparable(server)), list(sockets)
    for _ in range(2):  # a table that changes while it is read may lack a row
        if found := {user for path in tables for user in _users(path, *ends)}:
            return found <= set(users)
    return False


def _users(path: Path, local: Address, remote: Address) -> Iterator[int]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return
    ports = (f":{local.port:04X}", f":{remote.port:04X}")
    for _, near, far, state, _, _, _, user, _, inode, *_ in map(str.split, lines):
        # A socket that its process has closed has inode 0 and user 0, as if it were root's.
        if state != _ESTABLISHED or inode == "0" or (near[-5:], far[-5:]) != ports:
            continue
        if (_read(near), _read(far)) == (local, remote):
            yield int(user)


def _read(text: str) -> Address:
    """Reads hexadecimal ADDRESS:PORT, the address in 32-bit words of the machine's byte order."""
    digits, _, port = text.partition(":")
    data = bytes.fromhex(digits)
    if sys.byteorder == "little":
        data = b"".join(data[i : i + 4][::-1] for i in range(0, len(data), 4))
    return _comparable(Address(str(ip_address(data)), int(port, 16)))


def _comparable(address: Address) -> Address:
    """Returns an IPv4-mapped IPv6 address as IPv4, and an IPv6 address without its scope."""
    ip = as_ip(address.host.partition("%")[0])
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return address if ip is None else address._replace(host=str(ip))


def private(protocol: type[Any], users: Collection[int]) -> type[Any]:
    """Returns a uvicorn protocol that serves these users of this machine.

    All others are served as nodes are, and refused everything else. It checks each connection
    once, when it opens, by its real addresses rather than by those that a request's headers may
    claim.
    """

    class Private(protocol):  # type: ignore[misc]  # a base that uvicorn chooses at run time
        app: Any

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if not (
                self.client
                and self.server
                and is_from(users, Address(*self.client), Address(*self.server))
            ):
                self.app = _fleet_alone(self.app)

    return Private


def _fleet_alone(app: Any) -> Any:
    """Returns an app that takes calls of nodes alone, and refuses all others."""

    async def taken(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"].startswith(FLEET):
            await app(scope, receive, send)
        else:
            await refuse(send, 403, detail=_REFUSAL)

    return taken
