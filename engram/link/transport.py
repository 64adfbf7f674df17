"""What both ends of the link agree on: its calls, and how gRPC is to treat connections.

    Connect(stream Frame) -> stream Frame    a node's asks and replies, as long as it is there
    Fetch(Frame) -> stream Chunk             content of an ask, from an offset on
    Deliver(stream Frame|Chunk) -> stream Frame   content of a reply, from an offset on
    Run(stream Frame) -> stream Frame        a run's asks and replies; on a Unix socket alone

Large content has calls of its own, beside ``Connect`` on the same connection: HTTP/2 then gives
each its flow control, so that a model that is on its way delays no other word.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import grpc

from engram.link.frames import CHUNK, HEADER

VERSION: Final = 1
"""Of the protocol: a server says so to a node that speaks another one."""
INLINE: Final = 2**18
"""Most bytes of content that goes in a frame of ``Connect``."""
CONNECT, FETCH, DELIVER, RUN = (
    f"/engram.Link/{name}" for name in ("Connect", "Fetch", "Deliver", "Run")
)
Options = list[tuple[str, Any]]


class Patience(NamedTuple):
    """Seconds until something is given up."""

    ping: float = 10.0  # of silence until the other end is asked whether it is there
    answer: float = 10.0  # until it has answered that; then the connection is dead
    stall: float = 60.0  # that a transfer may stand still
    grace: float = 120.0  # that a run may be away before its asks are dropped
    longest: float = 30.0  # between tries to connect


PATIENCE: Final = Patience()
"""What is usual."""


def both(patience: Patience) -> Options:
    """Returns gRPC's options of both ends: sizes, which it checks before it takes memory."""
    return [
        ("grpc.max_receive_message_length", HEADER + CHUNK + 4),
        ("grpc.max_send_message_length", HEADER + CHUNK + 4),
        ("grpc.keepalive_time_ms", int(1000 * patience.ping)),
        ("grpc.keepalive_timeout_ms", int(1000 * patience.answer)),
        ("grpc.http2.ping_timeout_ms", int(1000 * patience.answer)),  # else a minute
        ("grpc.http2.max_pings_without_data", 0),
    ]


def of_server(patience: Patience) -> Options:
    """Returns the options of a server."""
    return [
        *both(patience),
        ("grpc.so_reuseport", 0),  # a second server is refused
        ("grpc.max_concurrent_streams", 8),  # of a connection
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.max_metadata_size", 2**13),
        ("grpc.http2.min_ping_interval_without_data_ms", 1000),  # who asks more often is cut
        ("grpc.http2.max_ping_strikes", 2),
    ]


def of_node(patience: Patience) -> Options:
    """Returns the options of a node."""
    return [
        *both(patience),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),  # it dials anew
        ("grpc.min_reconnect_backoff_ms", 10_000),
    ]


def handlers(calls: dict[str, Callable[..., Any]]) -> grpc.GenericRpcHandler:
    """Returns gRPC's handler of some calls, whose messages are bytes as they are."""
    kinds = {FETCH: grpc.unary_stream_rpc_method_handler}
    made = {
        name.rpartition("/")[2]: kinds.get(name, grpc.stream_stream_rpc_method_handler)(call)
        for name, call in calls.items()
    }
    return grpc.method_handlers_generic_handler("engram.Link", made)
