"""Clients' names, where their data give them some."""

from collections import Counter
from typing import TYPE_CHECKING, Final

from engram.core.checks import must
from engram.core.streams import unseen
from engram.settings.errors import Names, Refused, few, one_line

if TYPE_CHECKING:
    from engram.settings.experiment import Experiment

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


def all_unseen(experiment: "Experiment", names: Names) -> frozenset[int]:
    """Returns the clients that never train, where all clients' names are known.

    Raises:
        Refused: The setting ``unseen`` lists what no client is called.
    """
    found, e = unseen(experiment, names), experiment
    if strange := e.unseen_names - {names.get(client, str(client)) for client in found}:
        expected = f"some of the clients: {few(range(e.num_clients), names)}"
        raise Refused(must("unseen", ",".join(sorted(strange)), expected))
    return found


def _with_number(name: str, client: int) -> str:
    end = f" (number {client})"
    return one_line(name, longest=_LONGEST - len(end)) + end
