"""What clients are called: the names that their data give them, where these do."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from federation.errors import one_line

__all__ = ["Names", "checked_names"]

Names = Mapping[int, str]
"""By client, its name. Those that have none are called by their numbers."""

_LONGEST: Final = 60  # characters of a name


def checked_names(given: Names, num_clients: int) -> dict[int, str]:
    """Returns names that messages can show: short, printable, and no two clients' the same.

    What would be taken for another client is followed by the number: ``park (number 6)``. That is
    a name that several have, or one that is another client's number.

    Args:
        given: Names as data, or other machines, give them.
        num_clients: Clients there are, ``0..num_clients-1``.
    """
    names = {
        client: one_line(name.strip(), longest=_LONGEST)
        for client, name in given.items()
        if name.strip() not in ("", str(client))
    }
    numbers = set(map(str, range(num_clients))) if names else set()
    while True:
        counts = Counter(names.values())
        taken = {c: name for c, name in names.items() if counts[name] > 1 or name in numbers}
        if not taken:
            return names
        # Those of one pass differ by their ends, so that only names that have none yet can be
        # taken in the next.
        names |= {client: _with_number(name, client) for client, name in taken.items()}


def _with_number(name: str, client: int) -> str:
    end = f" (number {client})"
    return one_line(name, longest=_LONGEST - len(end)) + end
