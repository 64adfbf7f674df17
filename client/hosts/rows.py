"""The tables of a node's clients, and the estimates that are shared with them."""

from collections.abc import Callable
from typing import TypeVar

from engram.client.hosts.base import Opening
from engram.client.training_description import Training
from engram.core.types import Params
from engram.data.tables.tables import TableData, own_table, table_data
from engram.settings.errors import UNNAMED, EngramError
from engram.tables.federation.molar_messages import SHARED
from engram.wire.messages import Content
from engram.wire.wire import arrays_of

_T = TypeVar("_T")


def read_tables(opening: Opening) -> TableData:
    """Returns the one client's own table, or the clients' shares of the experiment's.

    Raises:
        DataError: If it cannot be read.
    """
    if opening.own:
        return own_table(opening.experiment, opening.own, opening.client)
    found = table_data(opening.experiment, opening.hosted)
    return found if opening.named else found._replace(names=UNNAMED)


def trained_table(training: Training, client: int) -> TableData:
    """Returns the table of a client that a node's training learned from.

    Raises:
        DataError: If it cannot be read.
    """
    e = training.experiment
    return own_table(e, e.source, client) if training.own else table_data(e, [client])


def shared_by(content: Content, read: Callable[[Params], _T]) -> _T:
    """Reads the shared estimate of a message.

    Raises:
        EngramError: If it is missing, or ``read`` refuses it.
    """
    try:
        return read(arrays_of(content, SHARED))
    except (KeyError, TypeError, ValueError) as error:
        raise EngramError(f"the message lacks the shared estimate: {error}") from error
