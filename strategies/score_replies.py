"""Collects clients' scores from the replies to an evaluation, without impossible replies."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from logging import getLogger

from flwr.app import Message

from federation.columns import Column
from federation.errors import few
from federation.names import Names
from strategies.evaluation import Scored
from strategies.reading import Kind, Rejected, read_reply
from strategies.screening import screen_scores

__all__ = ["collect_scores"]

_log = getLogger("flwr.engram")


def collect_scores(
    answers: Mapping[str, Message],
    asked: Sequence[tuple[Message, list[int]]],
    *,
    server_round: int,
    columns: Sequence[Column],
    names: Names,
) -> tuple[Scored, Counter[Kind]]:
    """Returns the scores by client, and the number of rejected replies by kind.

    Args:
        answers: Replies, by the id of the message that each answers.
        asked: The messages, and the clients that each asks.
        server_round: The round.
        columns: The columns that a reply must hold.
        names: The clients' names.
    """
    scores: Scored = {}
    rejected: Counter[Kind] = Counter()
    for message, clients in asked:
        reply = answers.get(message.metadata.message_id)
        if reply is None:
            continue
        read = partial(screen_scores, server_round=server_round, asked=clients, columns=columns)
        found = read_reply(reply, read)
        if isinstance(found, Rejected):
            rejected[found.kind] += 1
            _log.warning(
                "round %d: clients %s lack scores (%s): %s",
                server_round,
                few(clients, names),
                found.kind,
                found.reason,
            )
        else:
            scores |= found
    return scores, rejected
