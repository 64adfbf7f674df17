"""Clients with too few rows: those that take no part in a run, and those that are not scored."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from engram.core.checks import must
from engram.core.streams import unseen
from engram.settings.errors import DataError, Names, Refused, few, one_line
from engram.settings.experiment import Experiment

_LONGEST: Final = 60  # characters of a name
Size = tuple[int, ...]  # a client, and its numbers of training, validation and test rows


class Shortage(NamedTuple):
    """Clients with too few rows, and why: the end of a sentence about the client.

    Attributes:
        left_out: Those that cannot train. They take no part.
        unscored: Those that train, and cannot be scored.
    """

    left_out: Mapping[int, str]
    unscored: Mapping[int, str]


def shortage(sizes: Iterable[Size], e: Experiment, *, least: int = 1) -> Shortage:
    """Finds the clients with too few rows; ``least`` are those of a batch."""
    left_out, unscored = {}, {}
    for client, n_train, held_out, n_test in sizes:
        if n_train < least:
            left_out[client] = _too_few_to_train(n_train, held_out, least)
        elif why := _why_unscored(n_train, held_out, n_test, e):
            unscored[client] = why
    return Shortage(left_out, unscored)


def _too_few_to_train(rows: int, held_out: int, least: int) -> str:
    beside = f" beside {held_out} held out for validation" if held_out else ""
    if not rows:
        return f"it has no training rows{beside}"
    network = f"this network, which normalizes by its batches, needs {least}"
    return f"it has {rows} training row{beside}, and {network}"


def _why_unscored(n_train: int, held_out: int, n_test: int, e: Experiment) -> str:
    if e.protocol == "few-shot" and n_test <= e.adapt_shots:
        rows = f"{n_test} test row{'s' * (n_test != 1)}, not more than adapt-shots"
        return f"it has {rows} = {e.adapt_shots}, so that none is left to score"
    if not n_test:
        return "it has no test rows to be scored on"
    if e.validates and not held_out:
        rows = "row, so that" if n_train == 1 else "rows, and"
        return f"it has {n_train} training {rows} none is held out for validation"
    return ""


def check_shortage(found: Shortage, clients: int, e: Experiment, names: Names) -> None:
    """Refuses a federation of which too few clients have rows enough.

    ``clients`` is how many there are here.

    Raises:
        DataError: Nobody can train, or be scored; or fewer than ``min-clients`` can train.
    """
    able = clients - len(found.left_out)
    mend = "lower adapt-shots" if e.protocol == "few-shot" else "change test-fraction"
    given_out = e.partition != "natural" and clients == e.num_clients  # else own rows
    more = "lower num-clients" if given_out else "add rows"
    if not able:
        raise DataError(f"no client has enough rows to train: {in_groups(found.left_out, names)}")
    if clients < e.num_clients:  # one node's, which others may make up for
        return
    if able == len(found.unscored):
        why = in_groups(found.unscored, names)
        raise DataError(f"no client has enough rows to be scored: {why}: {more}, or {mend}")
    if able < e.min_clients:
        why = f"min-clients is {e.min_clients}: {in_groups(found.left_out, names)}"
        raise DataError(f"only {able} of {clients} clients can train, and {why}")


def in_groups(reasons: Mapping[int, str], names: Names) -> str:
    """Returns clients in words, those with the same reason together."""
    clients: dict[str, list[int]] = {}
    for client, reason in sorted(reasons.items()):
        clients.setdefault(reason, []).append(client)
    return "; ".join(f"clients {few(some, names)}: {reason}" for reason, some in clients.items())


def shown_name(name: object) -> str:
    """Returns a name as messages show it: printable, short, without spaces around it."""
    return one_line(str(name).strip(), longest=_LONGEST)


def checked_names(given: Names, num_clients: int) -> dict[int, str]:
    """Returns names that messages can show: short, printable and unique.

    A name that several clients have is followed by its client's number: ``park (number 6)``. A
    client without a name is called by its number, which no other is called, then.
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
        for client, name in taken.items():
            end = f" (number {client})"
            names[client] = one_line(name, longest=_LONGEST - len(end)) + end


def all_unseen(experiment: Experiment, names: Names) -> frozenset[int]:
    """Returns the clients that never train, where all clients' names are known.

    Raises:
        Refused: The setting ``unseen`` lists what no client is called.
    """
    found, e = unseen(experiment, names), experiment
    if strange := e.unseen_names - {names.get(client, str(client)) for client in found}:
        expected = f"some of the clients: {few(range(e.num_clients), names)}"
        raise Refused(must("unseen", ",".join(sorted(strange)), expected))
    return found
