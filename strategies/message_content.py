"""Messages to nodes: the common slots, and the own slots of the node's clients."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from engram.core.method import Method, Slots
from engram.core.slots import flat
from engram.wire.wire import ARRAYS, CONFIG, OWN, VERSION, to_record

if TYPE_CHECKING:
    from engram.guards.compressed_messages import Traffic


def outgoing(
    method: Method, server: Slots, traffic: "Traffic | None" = None
) -> Callable[[ConfigRecord, Sequence[int]], RecordDict]:
    """Returns ``(config, clients) -> content``, which makes a message to these clients.

    Args:
        method: The method.
        server: The server's slots.
        traffic: Compresses messages; None to send the slots as they are.
    """
    arrays = flat(method.server.send(server, [0])[0])
    # One object for all messages, by which a process groups them.
    common = to_record(arrays)
    compressed = traffic.records(server, arrays) if traffic else None

    def content(config: ConfigRecord, clients: Sequence[int]) -> RecordDict:
        records: dict[str, ArrayRecord | MetricRecord | ConfigRecord]
        records = {ARRAYS: common, CONFIG: config}
        if compressed is not None:
            records[ARRAYS] = compressed.record(clients)
            config[VERSION] = compressed.version
        if own := flat(method.server.send(server, clients)[1]):
            records[OWN] = to_record(own)
        return RecordDict(records)

    return content
