"""Failures of a node's connection with its server, in words, by their remedy."""

import math
from typing import Final

import grpc

from engram.link.node.superlink_address import Way
from engram.link.node.tls_check import find_fault
from engram.settings.errors import EngramError, one_line

_STOLEN: Final = "If that is not its site's, its key was stolen: engram remove, on the server"
_ANEW: Final = "to take part again it needs another, by an invitation or init-federation --new-key"


class Failure(EngramError):
    """Failure of a connection.

    Attributes:
        final: Whether it ends a node.
        left: Whether the client's site has given its key up.
        patience: Seconds for which a node that begins puts up with it.
        repeated: Whether it is said each time.
        causes: What may have caused it, beside what it says.
    """

    final = left = repeated = False
    patience, causes = math.inf, ""


class Unreachable(Failure):
    """The server cannot be reached at the moment."""


class Uncallable(Failure):
    """This node cannot call the server for now, such as without its key, or read its words."""


class ClockRefused(Failure):
    """The server answers, but this machine's clock differs too much from its own."""


class KeyRefused(Failure):
    """The server answers, but does not accept this node, for now."""

    patience, repeated = 25.0, True  # it may be registered in a moment
    causes = (
        " Either its key is not registered (on the server: engram register), or something on the"
        " way breaks its connections"
    )


class Gone(KeyRefused):
    """The server refuses this node's key for good: it was removed, or has left."""

    final = True


class Replaced(Failure):
    """Another node has connected with this node's key."""

    final = True


class OtherVersion(Failure):
    """The server speaks another version of the link."""

    patience = 0.0


class Untrusted(Failure):
    """Something other than the server answers, or the server cannot prove its identity."""

    patience, repeated = 0.0, True


_FAULTS: Final = {
    "certificate": Untrusted,
    "clock": ClockRefused,
    "key": KeyRefused,
    "protocol": Unreachable,
}


def explain(
    way: Way, code: grpc.StatusCode, details: str, *, was_connected: bool = False
) -> Failure:
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
        # As engram/link/server/hub.py has it.
        gone.left = "has left" in details or credentials.has_left
        return gone
    if code == grpc.StatusCode.ALREADY_EXISTS:
        return Replaced(f"{where} has ended this node: {details}. {_STOLEN}")
    if code == grpc.StatusCode.FAILED_PRECONDITION:
        return OtherVersion(f"{where} refuses this node: {details}")
    if code == grpc.StatusCode.UNAUTHENTICATED:
        return KeyRefused(f"{where} refuses this node: {details}.")
    failure: Failure = Unreachable(f"{where} does not answer: {details}")
    if code == grpc.StatusCode.UNAVAILABLE and not was_connected:
        fault = find_fault(credentials.superlink, credentials.root_certificate, way.key_host)
        if fault is not None:
            failure = _FAULTS[fault.kind](f"{where} {fault.text}")
            if fault.kind == "certificate" and credentials.former:  # it may answer at the other
                failure.patience = math.inf
    if code == grpc.StatusCode.UNKNOWN:
        failure = Uncallable(f"{where} cannot be called: {details}")
    return failure
