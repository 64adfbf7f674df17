"""Screening of the replies to a round of training, and the reasons of those left out."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from logging import getLogger
from typing import NamedTuple

from flwr.app import Message

from engram.core.shapes import Shapes
from engram.metrics import Metric
from federation.aggregation import Merge
from federation.errors import few
from federation.names import Names
from federation.roster import Roster
from strategies.reading import Kind, Rejected, first_answers, read_reply
from strategies.screening import Accepted, screen

__all__ = ["TrainReplies", "collect_replies", "in_numbers", "warn_of"]

_log = getLogger("flwr.engram")

_TOLD = 10  # most reasons that an error lists


class TrainReplies(NamedTuple):
    """The replies to a round's messages, each with the clients that its message asked.

    Attributes:
        accepted: The replies that can be merged, in the order of their clients.
        rejected: The replies that are left out, in the same order.
        silent: The clients of messages without a reply.
        others: Numbers, by kind, of replies to no message, or to one that had its reply already.
    """

    accepted: list[tuple[list[int], Accepted]]
    rejected: list[tuple[list[int], Rejected]]
    silent: list[list[int]]
    others: Counter[Kind]

    @property
    def asked(self) -> int:
        """Number of clients that were asked."""
        others = [clients for clients, _ in (*self.accepted, *self.rejected)]
        return sum(map(len, (*others, *self.silent)))

    @property
    def usable(self) -> int:
        """Number of clients with a usable update."""
        return sum(len(reply.clients) for _, reply in self.accepted)

    @property
    def diverged(self) -> dict[int, str]:
        """Clients whose models became non-finite, with likely causes."""
        found = {c: reason for _, reply in self.accepted for c, reason in reply.failed.items()}
        for clients, reply in self.rejected:
            if reply.kind in ("diverged", "non-finite"):
                found |= dict.fromkeys(clients, reply.reason)
        return found

    @property
    def left_out(self) -> dict[int, str]:
        """Clients whose updates are not merged, with the reason in a word or two."""
        found = {client: "no reply" for clients in self.silent for client in clients}
        found |= {client: reply.kind for clients, reply in self.rejected for client in clients}
        return found | {c: "diverged" for _, reply in self.accepted for c in reply.failed}

    @property
    def kinds(self) -> Counter[Kind]:
        """Number of replies that are left out, by kind."""
        return self.others + Counter(reply.kind for _, reply in self.rejected)

    def in_words(self, names: Names) -> str:
        """Describes in words why replies are missing, with the clients' ``names``."""
        reasons = [f"clients {few(some, names)}: {reply.reason}" for some, reply in self.rejected]
        reasons += [f"clients {few(clients, names)}: no reply" for clients in self.silent]
        more = f"; ... {len(reasons)} in all" if len(reasons) > _TOLD else ""
        return "; ".join(reasons[:_TOLD]) + more

    def log(self, server_round: int, names: Names) -> None:
        """Warns of the clients that are left out of a round, in one line a kind of reason."""
        for kind in dict.fromkeys(reply.kind for _, reply in self.rejected):
            alike = [(clients, reply) for clients, reply in self.rejected if reply.kind == kind]
            _log.warning(
                "round %d: the reply of clients %s is left out (%s): %s",
                server_round,
                few([client for clients, _ in alike for client in clients], names),
                kind,
                first_of(reply.reason for _, reply in alike),
            )
        for clients in self.silent:
            _log.warning("round %d: clients %s did not reply", server_round, few(clients, names))
        warn_of(self.others, server_round)
        if failed := [r for _, reply in self.accepted for r in reply.failed.values()]:
            _log.warning("round %d: left out: %s", server_round, first_of(failed))


def collect_replies(
    replies: Iterable[Message],
    asked: Sequence[tuple[Message, list[int]]],
    *,
    server_round: int,
    shapes: Shapes,
    roster: Roster,
    most: int,
    merge: Merge,
    loss: Metric | None,
) -> TrainReplies:
    """Screens the replies to a round's messages, each by itself.

    Args:
        replies: All replies that arrived.
        asked: The messages, and the clients that each asks.
        server_round: The round.
        shapes: The slots of one client.
        roster: The clients.
        most: Largest number of a client's rows that count.
        merge: The merge of their updates.
        loss: The task's loss, if clients were asked for their training losses.
    """
    answers, others = first_answers(replies, [message for message, _ in asked])
    accepted, rejected, silent = [], [], []
    for message, clients in sorted(asked, key=lambda item: item[1]):
        reply = answers.get(message.metadata.message_id)
        if reply is None:
            silent.append(clients)
            continue
        read = partial(
            screen,
            server_round=server_round,
            shapes=shapes,
            asked=clients,
            examples={client: roster.examples[client] for client in clients},
            most=most,
            merge=merge,
            loss=loss,
        )
        verdict = read_reply(reply, read)
        if isinstance(verdict, Accepted):
            accepted.append((clients, verdict))
        else:
            rejected.append((clients, verdict))
    return TrainReplies(accepted, rejected, silent, others)


def first_of(reasons: Iterable[str]) -> str:
    """Returns the first of clients' reasons, which mostly are alike, and how many there are."""
    first, *others = dict.fromkeys(reasons)
    return f"{first} (the first of {1 + len(others)} reasons)" if others else first


def in_numbers(kinds: Counter[Kind]) -> dict[str, int]:
    """Returns a metric for each kind of reply that is left out."""
    return {f"rejected-{kind}": count for kind, count in sorted(kinds.items())}


def warn_of(others: Counter[Kind], server_round: int) -> None:
    """Warns of replies to no message, in one line a kind, so that they cannot flood the log."""
    for kind, count in sorted(others.items()):
        _log.warning("round %d: %d replies are left out (%s)", server_round, count, kind)
