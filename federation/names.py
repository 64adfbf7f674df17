"""Clients' names, where their data give them some."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from federation.errors import one_line

__all__ = ["Names", "checked_names", "shown_name"]

Names = Mapping[int, str]
"""Names by client; clients without one are shown by their numbers."""

_LONGEST: Final = 60  # characters of a name


def shown_name(name: object) -> str:
    """Returns a name as messages show it: printable, short, without spaces around it."""
    return one_line(str(name).strip(), longest=_LONGEST)


def checked_names(given: Names, num_clients: int) -> dict[int, str]:
    """Returns names that messages can show: short, printable and unique.

    A name that several clients have is followed by its client's number: ``park (number 6)``. A
    client without a name is called by its number, which no other is called, then.

    Args:
        given: Names from data or from other machines.
        num_clients: Number of clients.
    """
    names = {
        client: shown_name(name)
        for client, name in given.items()
        if name.strip() not in ("", str(client))
    }
    numbers = {str(client) for client in range(num_clients) if client not in names} if names else ()
    while True:
        counts = Counter(names.values())
        taken = {c: name for c, name in names.items() if counts[name] > 1 or name in numbers}
        if not taken:
            return names
        # Names changed in one pass differ from each other, so each further pass changes a name
        # that had no suffix yet: the loop ends.
        names |= {client: _with_number(name, client) for client, name in taken.items()}


def _with_number(name: str, client: int) -> str:
    end = f" (number {client})"
    return one_line(name, longest=_LONGEST - len(end)) + end
