"""TLS handshakes outside gRPC, to find out why a connection fails.

gRPC's messages about failed handshakes vary with its version and the machine's load, and hardly
distinguish a connection that was reset from a certificate that was refused.
"""

import socket
import ssl
from pathlib import Path
from typing import Final, NamedTuple

from federation.addresses import Address, parse_address

__all__ = ["Fault", "find_fault", "speaks_tls"]

_PATIENCE: Final = 5.0  # seconds for a connection, and again for the handshake
# OpenSSL's numbers of faults in a certificate (x509_vfy.h).
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_OTHER_NAMES: Final = (62, 64)  # DNS names, IP addresses


class Fault(NamedTuple):
    """What is wrong with a server.

    Attributes:
        text: The end of a sentence that begins with the server.
        final: Whether only a person can repair it.
    """

    text: str
    final: bool


def speaks_tls(address: str) -> bool:
    """Whether a server completes a TLS handshake, which gRPC without TLS cannot tell."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        _shake_hands(_parse(address), context)
    except OSError:  # includes ssl's errors
        return False
    return True


def find_fault(address: str, root: Path) -> Fault | None:
    """Checks a server's certificate by a TLS handshake; returns what is wrong with it.

    None if nothing is wrong, or if the connection broke before that was known. Only a certificate
    that fails its verification is a final fault: other answers may come from a proxy whose server
    has not started yet, or from another program that uses the port for a while.

    Args:
        address: HOST:PORT of the server.
        root: The file of the authority's certificate, which must have signed the server's.
    """
    server = _parse(address)
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(root)
        _shake_hands(server, context)
    except ssl.SSLCertVerificationError as error:
        return _certificate_fault(server, root, error)
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):  # it closed the connection
        return None
    except ssl.SSLError as error:
        reason = str(error.reason or error).replace("_", " ").lower()
        return Fault(f"does not speak TLS as this node does ({reason})", final=False)
    except OSError:
        return None
    return None


def _certificate_fault(server: Address, root: Path, error: ssl.SSLCertVerificationError) -> Fault:
    renew = "on the server, `engram init-federation FOLDER --renew"
    if error.verify_code == _NOT_YET_VALID:  # a machine's clock may be set after it has started
        question = "is this machine's clock right?"
        return Fault(f"has a certificate that is not valid yet: {question}", final=False)
    if error.verify_code == _EXPIRED:
        return Fault(f"has a certificate that has expired: {renew}` makes a new one", final=True)
    if error.verify_code in _OTHER_NAMES:
        mend = f"{renew} --host {server.host}` makes another one"
        return Fault(f"has a certificate for other names than {server.host}: {mend}", final=True)
    return Fault(f"is not vouched for by {root}: {error.verify_message}", final=True)


def _parse(address: str) -> Address:
    return parse_address(address, "superlink")


def _shake_hands(server: Address, context: ssl.SSLContext) -> None:
    with (
        socket.create_connection(server, timeout=_PATIENCE) as connection,
        context.wrap_socket(connection, server_hostname=server.host),
    ):
        pass
