"""What a message to a node holds: the arrays that all clients share, and those of its own ones."""

from collections.abc import Callable, Sequence

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from engram.aggregates import Aggregate
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
    tailored = aggregate.tailored
    if tailored is None:
        return lambda config, clients: RecordDict({ARRAYS: arrays, CONFIG: config})
    model = to_params(arrays)
    own = tailored(model, state, [0]).keys()
    common = ArrayRecord()  # one for all messages: nodes of a process train those together
    for name, array in arrays.items():
        if name not in own:
            common[name] = array

    def content(config: ConfigRecord, clients: Sequence[int]) -> RecordDict:
        theirs = to_record(tailored(model, state, clients))
        return RecordDict({ARRAYS: common, TAILORED: theirs, CONFIG: config})

    return content
