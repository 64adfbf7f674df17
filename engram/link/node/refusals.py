"""Failures of a node's connection with its server, in words, by what helps against them."""

from typing import Final

import grpc

from engram.link.node.superlink_address import Way
from engram.link.node.tls_check import find_fault
from engram.settings.errors import EngramError, one_line

_STOLEN: Final = "If that is not its site's, its key was stolen: engram remove, on the server"
_ANEW: Final = "to take part again it needs another, by an invitation or init-federation --new-key"


class Unreachable(EngramError):
    """The server cannot be reached at the moment."""


class ClockRefused(EngramError):
    """The server answers, but this machine's clock differs too much from its own."""


class KeyRefused(EngramError):
    """The server answers, but does not accept this node, for now."""


class Gone(KeyRefused):
    """The server refuses this node's key for good: it was removed, or has left.

    Attributes:
        left: Whether it has left.
    """

    left = False


class Replaced(EngramError):
    """Another node has connected with this node's key."""


class OtherVersion(EngramError):
    """The server speaks another version of the link."""


class Untrusted(EngramError):
    """Something other than the server answers, or the server cannot prove its identity."""


_FAULTS: Final = {
    "certificate": Untrusted,
    "clock": ClockRefused,
    "key": KeyRefused,
    "protocol": Unreachable,
}


def explain(
    way: Way, code: grpc.StatusCode, details: str, *, was_connected: bool = False
) -> EngramError:
    """Returns why a call failed; looks at the server's TLS if it may be that.

    Args:
        way: The way of the call.
        code: How the call failed.
        details: The same in words.
        was_connected: Whether TLS cannot be the cause.
    """
    credentials, details = way.credentials, one_line(details)
    where = f"the server at {credentials.superlink}"
    if code == grpc.StatusCode.PERMISSION_DENIED:
        gone = Gone(f"{where} refuses this client's key for good, as {details}: {_ANEW}")
        gone.left = "has left" in details  # as engram/link/server/hub.py has it
        return gone
    if code == grpc.StatusCode.ALREADY_EXISTS:
        return Replaced(f"{where} has ended this node: {details}. {_STOLEN}")
    if code == grpc.StatusCode.FAILED_PRECONDITION:
        return OtherVersion(f"{where} refuses this node: {details}")
    if code == grpc.StatusCode.UNAUTHENTICATED:
        return KeyRefused(f"{where} refuses this node: {details}.")
    if code == grpc.StatusCode.UNAVAILABLE and not was_connected:
        fault = find_fault(credentials.superlink, credentials.root_certificate, way.key_host)
        if fault is not None:
            return _FAULTS[fault.kind](f"{where} {fault.text}")
    return Unreachable(f"{where} does not answer: {details}")
