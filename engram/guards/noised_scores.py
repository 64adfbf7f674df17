"""Scores that came with noise: releases of clients' data, which a run's privacy counts."""

from collections.abc import Iterable

from flwr.app import Message

from engram.wire.wire import CLIENTS, NOISE, read_list


def noised_by(replies: Iterable[Message], clients: int) -> list[int]:
    """Returns the clients whose scores have the noise of local privacy, by what nodes say.

    Args:
        replies: The answers to an evaluation, by whoever sent them.
        clients: How many clients there are.
    """
    found = set[int]()
    for reply in replies:
        record = reply.content.config_records.get(CLIENTS) if reply.has_content() else None
        if record is None or NOISE not in record:
            continue
        try:
            found.update(read_list(record, "ids", int))
        except (KeyError, TypeError):  # which screening leaves out
            continue
    return sorted(found & {*range(clients)})
