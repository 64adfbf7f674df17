"""Messages to nodes: the common slots, and the own slots of the node's clients."""

from collections.abc import Callable, Sequence

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from engram.core.method import Method, Slots
from engram.core.slots import flat
from federation.wire import ARRAYS, CONFIG, OWN, to_record


def outgoing(method: Method, server: Slots) -> Callable[[ConfigRecord, Sequence[int]], RecordDict]:
    """Returns ``(config, clients) -> content``, which makes a message to these clients.

    Args:
        method: The method.
        server: The server's slots.
    """
    # One object for all messages, by which a process groups them.
    common = to_record(flat(method.server.send(server, [0])[0]))

    def content(config: ConfigRecord, clients: Sequence[int]) -> RecordDict:
        records: dict[str, ArrayRecord | MetricRecord | ConfigRecord]
        records = {ARRAYS: common, CONFIG: config}
        if own := flat(method.server.send(server, clients)[1]):
            records[OWN] = to_record(own)
        return RecordDict(records)

    return content
