"""The slots that served a client when it was scored last, which a node keeps for its exports.

Of most methods a client remembers a part of its model, or none, and receives the rest. A node has
all of it each time that it scores its clients, and keeps it then, beside their memories.
"""

from logging import getLogger
from typing import Final, NamedTuple

from engram.client.disk_memory import DiskStore, MemoryFull
from engram.client.requests import round_of
from engram.core.method import Method
from engram.core.rounds import received_by
from engram.core.slots import is_known, unknown
from engram.core.types import Params
from engram.wire.messages import Content
from engram.wire.wire import ARRAYS, CLIENTS, OWN, read_list

_RECEIVED: Final = "received/"
_MEMORY: Final = "memory/"

_log = getLogger("flwr.engram")


class Scored(NamedTuple):
    """The slots that served a client when it was scored after a round."""

    server_round: int
    received: Params  # by path
    memory: Params | None  # None if it had none yet


def needs_received(method: Method) -> bool:
    """Whether the model of any client depends on received slots."""
    received = unknown(received_by(method, method.server.start, 0))
    served = (method.serve(received, method.client.start, trained) for trained in (True, False))
    return not all(map(is_known, served))


def keep_scored(store: DiskStore, needs_received: bool, content: Content, reply: Content) -> None:
    """Keeps the slots by which clients have just been scored.

    If there is no room for them, a line of the log says so: scores do not depend on them.

    Of clients that have memories nothing is kept unless the method ``needs_received``.
    """
    server_round = round_of(content)
    common = content[ARRAYS]
    own = content.get(OWN, {})
    clients = read_list(reply[CLIENTS], "ids", int)
    try:
        for row, client in enumerate(clients):
            memory = store.load(client, before=server_round + 1)
            if memory is not None and not needs_received:
                store.drop_serving(client)
                continue
            received = common | {path: leaf[row].clone() for path, leaf in own.items()}
            arrays = _under(_RECEIVED, received) | _under(_MEMORY, memory or {})
            store.save_serving(client, arrays, server_round=server_round)
    except MemoryFull as error:
        _log.warning("models of round %d cannot be exported here: %s", server_round, error)


def read_scored(store: DiskStore, client: int) -> Scored | None:
    """Returns the slots of ``keep_scored`` for a client; None if there are none.

    Raises:
        MemoryMismatch: If it is damaged, or encrypted with another key.
    """
    found = store.load_serving(client)
    if found is None:
        return None
    server_round, arrays = found
    return Scored(server_round, _of(_RECEIVED, arrays), _of(_MEMORY, arrays) or None)


def _under(prefix: str, arrays: Params) -> Params:
    return {prefix + path: leaf for path, leaf in arrays.items()}


def _of(prefix: str, arrays: Params) -> Params:
    return {n.removeprefix(prefix): leaf for n, leaf in arrays.items() if n.startswith(prefix)}
