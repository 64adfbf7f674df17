"""What a message to a node holds: the arrays that all clients share, and those of its own ones."""

from collections.abc import Callable, Sequence

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from engram.aggregates import Aggregate, sent
from engram.types import Params
from federation.wire import ARRAYS, CONFIG, TAILORED, to_params, to_record

__all__ = ["outgoing"]


def outgoing(
    aggregate: Aggregate, arrays: ArrayRecord, state: Params
) -> Callable[[ConfigRecord, Sequence[int]], RecordDict]:
    """Returns what makes the content of a message of its config and the clients that it asks.

    Args:
        aggregate: The server's part.
        arrays: The model.
        state: The aggregate's state.
    """
    if aggregate.tailored is None:
        return lambda config, clients: RecordDict({ARRAYS: arrays, CONFIG: config})
    model = to_params(arrays)
    common = to_record(sent(aggregate, model, state, [0])[0])  # one, by which a node groups them

    def content(config: ConfigRecord, clients: Sequence[int]) -> RecordDict:
        _, own = sent(aggregate, model, state, clients)
        return RecordDict({ARRAYS: common, TAILORED: to_record(own), CONFIG: config})

    return content
