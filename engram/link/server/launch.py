"""The address of a federation's server, and warnings for its operator."""

import errno
import socket
from datetime import UTC, datetime, timedelta

from engram.link.addresses import Address, as_ip, parse_address
from engram.link.credentials import ServerCredentials, renewal
from engram.settings.errors import Refused

_SOON = timedelta(days=30)


def listening_address(credentials: ServerCredentials, fleet: str | None = None) -> Address:
    """Returns where a server listens for nodes.

    By default that is the port that they connect to, on the loopback interface if they connect to
    it, and else on all interfaces.

    Raises:
        Refused: ``fleet`` is no HOST:PORT.
    """
    if fleet is not None:
        return parse_address(fleet, "fleet")
    called = parse_address(credentials.settings.superlink, "superlink")
    ip = as_ip(called.host)
    if called.is_loopback:
        return called if ip else called._replace(host="127.0.0.1")
    return called._replace(host="::" if ip and ip.version == 6 else "0.0.0.0")


def check_free(address: Address, option: str) -> None:
    """Checks that this process can listen at an address.

    Raises:
        Refused: If it cannot; ``option`` is named as the way to choose another address.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            cause = f"port {address.port} is taken: end what listens there"
        else:
            cause = f"nothing can listen at {address} ({error.strerror})"
        raise Refused(f"{cause}, or give another one with {option}") from error


def warnings(credentials: ServerCredentials) -> list[str]:
    """Returns warnings at the start of a server, one line each."""
    tls = credentials.tls
    if tls.expires - datetime.now(UTC) >= _SOON:
        return []
    return [f"{tls.certificate} expires on {tls.expires:%Y-%m-%d}: {renewal(credentials.folder)}"]
