"""TLS handshakes outside gRPC, to find out why a connection fails.

gRPC's messages about failed handshakes vary with its version and the machine's load, and hardly
distinguish a connection that was reset from a certificate that was refused.
"""

import socket
import ssl
from pathlib import Path
from typing import Final, Literal, NamedTuple

from cryptography import x509

from engram.link.addresses import Address, parse_address
from engram.link.keys import UNREADABLE
from engram.wire.clock import now, outside

_PATIENCE: Final = 5.0  # seconds for a connection, and again for the handshake
_RENEW: Final = "on the server, `engram renew SERVER_FOLDER"
# OpenSSL's numbers of faults in a certificate (x509_vfy.h).
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_OTHER_NAMES: Final = (62, 64)  # DNS names, IP addresses


class Fault(NamedTuple):
    """A fault of a server's connection.

    Attributes:
        text: The end of a sentence that begins with the server.
        kind: A ``certificate`` that only a person can replace, a ``clock`` that may still be set,
            another ``protocol``, as of a proxy whose server has not started yet, or the ``key``
            of this client.
    """

    text: str
    kind: Literal["certificate", "clock", "protocol", "key"]


def find_fault(address: str, root: Path, key_host: str = "") -> Fault | None:
    """Finds out by a TLS handshake why a server could not be called.

    None if the connection broke before that was known. Only a certificate that fails its
    verification is a final fault: other answers may come from a proxy whose server has not started
    yet, or from another program that uses the port for a while. Where nothing is wrong with the
    server's, it has not let in the client's: servers of gRPC close such connections without a word.

    Args:
        address: HOST:PORT of the server.
        root: The file of the authority's certificate, which must have signed the server's.
        key_host: The name that it must have, if not that of the address (``Way.key_host``).
    """
    server = parse_address(address, "superlink")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(root)
        _shake_hands(server, context, key_host)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in (_NOT_YET_VALID, _EXPIRED):
            return _fault_of_time(server, error.verify_code)
        return _certificate_fault(server, root, error, key_host)
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):  # it closed the connection
        return None
    except ssl.SSLError as error:
        reason = str(error.reason or error).replace("_", " ").lower()
        return Fault(f"does not speak TLS as this node does ({reason})", "protocol")
    except OSError:
        return None
    return Fault("is there, and ends this node's connections.", "key")


def _certificate_fault(
    server: Address, root: Path, error: ssl.SSLCertVerificationError, key_host: str
) -> Fault:
    if error.verify_code in _OTHER_NAMES and key_host:
        return Fault("has a key from before the one that this node has heard of", "certificate")
    if error.verify_code in _OTHER_NAMES:
        mend = f"{_RENEW} --host {server.host}` makes another one"
        return Fault(f"has a certificate for other names than {server.host}: {mend}", "certificate")
    return Fault(f"is not vouched for by {root}: {error.verify_message}", "certificate")


def _fault_of_time(server: Address, code: int) -> Fault | None:
    """Compares this machine's clock with the certificate that OpenSSL has refused by it."""
    try:
        certificate = x509.load_der_x509_certificate(_unverified(server))
    except (OSError, *UNREADABLE):  # the connection broke, or another one answers by now
        return None
    fault = outside(certificate, now(), f"{_RENEW}` makes a new one")
    if fault is None:
        return None
    return Fault(f"has a certificate that {fault}", "certificate" if code == _EXPIRED else "clock")


def _unverified(server: Address) -> bytes:
    """Shakes hands with an unverified server; returns its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return _shake_hands(server, context)


def _shake_hands(server: Address, context: ssl.SSLContext, name: str = "") -> bytes:
    """Returns the server's certificate, in DER."""
    with (
        socket.create_connection(server, timeout=_PATIENCE) as connection,
        context.wrap_socket(connection, server_hostname=name or server.host) as wrapped,
    ):
        return wrapped.getpeercert(binary_form=True) or b""
