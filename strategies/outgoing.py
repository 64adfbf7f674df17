"""The arrays in a message to a node: those that all clients share, and its own clients'."""

from collections.abc import Callable, Sequence

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from engram.aggregates import Aggregate, sent
from engram.types import Params
from federation.wire import ARRAYS, CONFIG, TAILORED, to_params, to_record

__all__ = ["outgoing"]


def outgoing(
    aggregate: Aggregate, arrays: ArrayRecord, state: Params
) -> Callable[[ConfigRecord, Sequence[int]], RecordDict]:
    """Returns ``(config, clients) -> content`` of a message that asks these clients.

    Args:
        aggregate: The server's part.
        arrays: The model.
        state: The aggregate's state.
    """
    if aggregate.tailored is None:
        return lambda config, clients: RecordDict({ARRAYS: arrays, CONFIG: config})
    model = to_params(arrays)
    # One object for all messages, by which a process groups them.
    common = to_record(sent(aggregate, model, state, [0])[0])

    def content(config: ConfigRecord, clients: Sequence[int]) -> RecordDict:
        _, own = sent(aggregate, model, state, clients)
        return RecordDict({ARRAYS: common, TAILORED: to_record(own), CONFIG: config})

    return content
