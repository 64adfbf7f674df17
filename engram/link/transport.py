"""Calls and gRPC options that both ends of the link agree on.

    Connect(stream Frame) -> stream Frame    a node's asks and replies, as long as it is there
    Fetch(Frame) -> stream Chunk             content of an ask, from an offset on
    Deliver(stream Frame|Chunk) -> stream Frame   content of a reply, from an offset on
    Run(stream Frame) -> stream Frame        a run's asks and replies; on a Unix socket alone
    Status() -> JSON                         members, runs, counters; on a Unix socket alone

Large content has calls of its own, beside ``Connect`` on the same connection: HTTP/2 then gives
each its flow control, so that a model that is on its way delays no other word.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit
from typing import Any, Final, NamedTuple

import grpc

from engram.link.frames import CHUNK, HEADER

VERSION: Final = 1
"""Version of the protocol."""
INLINE: Final = 2**18
"""Upper bound on the bytes of contents in a frame of ``Connect``."""
SOCKET: Final = "link.sock"
"""Name of the Unix socket in a server's folder."""
CONNECT, FETCH, DELIVER, RUN, STATUS = (
    f"/engram.Link/{name}" for name in ("Connect", "Fetch", "Deliver", "Run", "Status")
)
Options = list[tuple[str, Any]]

_KINDS: Final = {
    FETCH: grpc.unary_stream_rpc_method_handler,
    STATUS: grpc.unary_unary_rpc_method_handler,
}
_MOST: Final = 4096  # connections at a time
_LONGEST_PATH: Final = 100  # bytes of a Unix socket's path; the system takes 107


class Patience(NamedTuple):
    """Seconds until something is given up."""

    ping: float = 10.0  # of silence until the other end is asked whether it is there
    answer: float = 10.0  # until it has answered that; then the connection is dead
    stall: float = 60.0  # that a transfer may stand still
    grace: float = 120.0  # that a run may be away before its asks are dropped
    longest: float = 30.0  # between tries to connect
    turn: float = 10.0  # that a run's ask waits for a node at work for another run


PATIENCE: Final = Patience()
"""Usual patience."""


def version_fault(version: object, who: str) -> str:
    """Describes a version of the protocol that differs from this program's; "" for none."""
    if version == VERSION:
        return ""
    return (
        f"this server speaks version {VERSION} of Engram's link, and {who} version"
        f" {str(version)[:20]}: install the same release of Engram on both"
    )


@contextlib.contextmanager
def socket_target(folder: Path) -> Iterator[str]:
    """Yields gRPC's target of the socket in a server's folder, even of a long path."""
    path = folder.absolute() / SOCKET
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield f"unix:{str(path).replace('%', '%25')}"  # gRPC's targets are URIs
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"unix:/proc/self/fd/{handle}/{SOCKET}"
    finally:
        os.close(handle)


def socket_options() -> Options:
    """Returns gRPC's options of a client of the socket."""
    return [
        ("grpc.max_receive_message_length", HEADER + CHUNK + 4),
        ("grpc.use_local_subchannel_pool", 1),  # a new channel does not inherit pauses
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
    ]


def both_options(patience: Patience) -> Options:
    """Returns gRPC's options of both ends: sizes are checked before it takes memory."""
    return [
        ("grpc.max_receive_message_length", HEADER + CHUNK + 4),
        ("grpc.max_send_message_length", HEADER + CHUNK + 4),
        ("grpc.keepalive_time_ms", int(1000 * patience.ping)),
        ("grpc.keepalive_timeout_ms", int(1000 * patience.answer)),
        ("grpc.http2.ping_timeout_ms", int(1000 * patience.answer)),  # else a minute
        ("grpc.http2.max_pings_without_data", 0),
    ]


def server_options(patience: Patience) -> Options:
    """Returns gRPC's options of a server."""
    return [
        *both_options(patience),
        ("grpc.so_reuseport", 0),  # a second server is refused
        ("grpc.max_concurrent_streams", 8),  # of a connection
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.max_connection_idle_ms", 60_000),  # without a call
        # Strangers' as well, until their handshakes are given up; files need descriptors, too.
        ("grpc.max_allowed_incoming_connections", min(_MOST, getrlimit(RLIMIT_NOFILE)[0] // 2)),
        ("grpc.max_metadata_size", 2**13),
        ("grpc.http2.min_ping_interval_without_data_ms", 1000),  # who asks more often is cut
        ("grpc.http2.max_ping_strikes", 2),
    ]


def node_options(patience: Patience) -> Options:
    """Returns gRPC's options of a node."""
    return [
        *both_options(patience),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),  # it dials anew
        ("grpc.min_reconnect_backoff_ms", 10_000),
    ]


def handlers(calls: dict[str, Callable[..., Any]]) -> grpc.GenericRpcHandler:
    """Returns gRPC's handler of some calls, with bytes as their messages."""
    found = {
        name.rpartition("/")[2]: _KINDS.get(name, grpc.stream_stream_rpc_method_handler)(call)
        for name, call in calls.items()
    }
    return grpc.method_handlers_generic_handler("engram.Link", found)
