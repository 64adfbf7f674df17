"""The tables of a node's clients."""

from client.hosts.base import Opening
from federation.data.tables import TableData, own_table, table_data
from federation.errors import UNNAMED

__all__ = ["read_tables"]


def read_tables(opening: Opening) -> TableData:
    """Returns the one client's own table, or the clients' shares of the experiment's.

    Raises:
        DataError: If it cannot be read.
    """
    if opening.own:
        return own_table(opening.experiment, opening.own, opening.client)
    found = table_data(opening.experiment, opening.hosted)
    return found if opening.named else found._replace(names=UNNAMED)
