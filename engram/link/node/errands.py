"""Errands to a server beside the connection of a client's node: to look, and to leave."""

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import grpc

from engram.link.credentials import NodeCredentials
from engram.link.frames import BadFrame, Frame, pack, unpack
from engram.link.node.refusals import Gone, Unreachable, explain
from engram.link.node.superlink_address import Way
from engram.link.transport import CONNECT, PATIENCE, VERSION, node_options
from engram.settings.errors import Refused
from engram.settings.files import refusing, replace_file
from engram.wire.clock import now

_CALL: Final = 20.0  # seconds that an errand may take


class Greeting(NamedTuple):
    """A server's answer to a client that it knows."""

    connected: bool  # whether the client's node is
    ahead: timedelta | None  # by how much this machine's clock is; None if it did not say


def greet(credentials: NodeCredentials) -> Greeting:
    """Asks whether a server answers and knows a client; changes nothing.

    Raises:
        EngramError: As ``explain`` returns.
    """
    answer = _run(credentials, "greet").fields
    try:
        ahead = now() - datetime.fromtimestamp(answer["time"], UTC)
    except (LookupError, TypeError, ValueError, OverflowError, OSError):
        ahead = None
    return Greeting(answer.get("connected") is True, ahead)


def check_there(credentials: NodeCredentials) -> None:
    """Checks that a client's site has not left.

    Raises:
        Refused: It has.
    """
    if credentials.has_left:
        raise Refused(
            f"{credentials.public_key.parent} has left {credentials.federation}: to take part "
            "again, it needs a new key, by `engram init-federation FOLDER --new-key "
            f"{credentials.partition_id}` where the federation was made"
        )


def leave(credentials: NodeCredentials) -> None:
    """Gives up a client's key; its node, if one runs, ends.

    An interrupted call can be repeated.

    Raises:
        Refused: The key was given up before, or that cannot be noted.
        EngramError: As ``explain`` returns; nothing has changed.
    """
    check_there(credentials)
    try:
        _run(credentials, "leave")
    except Gone as error:
        if not error.left:  # by a call that was interrupted
            raise
    with refusing(f"it has left (stop the node by hand), but {credentials.left} cannot be written"):
        replace_file(credentials.left, credentials.public_key.read_bytes())


def _run(credentials: NodeCredentials, errand: str) -> Frame:
    """Returns a server's answer to an errand."""
    way = Way(credentials)
    address, secret, options = way.dial()
    hello = pack("hello", version=VERSION, errand=errand)
    with grpc.secure_channel(address, secret, [*node_options(PATIENCE), *options]) as channel:
        call = channel.stream_stream(CONNECT)(iter([hello]), timeout=_CALL)
        try:
            return unpack(next(call))
        except grpc.RpcError as error:
            raise explain(way, error.code(), str(error.details())) from error
        except (StopIteration, BadFrame) as error:
            raise Unreachable(f"the server at {address} does not answer as one") from error
        finally:
            call.cancel()
