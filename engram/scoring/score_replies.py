"""Clients' scores from the answers to an evaluation, without impossible ones."""

from collections import Counter
from collections.abc import Iterable, Sequence
from logging import getLogger

from engram.scoring.evaluation import Scored, read_scores
from engram.scoring.score_columns import Column
from engram.settings.errors import Names, brief, few
from engram.strategies.running.reply_border import Kind, Rejected
from engram.wire.messages import Content
from engram.wire.wire import CLIENTS, WITHHELD, read_int, read_list

_log = getLogger("flwr.engram")

_TOLD = 10  # most reasons that are listed


Answer = Scored | Rejected | None
"""The scores of a node's clients, or why they are left out; None without a reply."""


def collect_scores(
    answers: Iterable[tuple[list[int], Answer]], server_round: int, names: Names
) -> tuple[Scored, Counter[Kind], str]:
    """Returns the scores by client, the number of rejected answers by kind, and why others lack.

    ``answers`` are those of nodes, with the clients that each was asked for.
    """
    scores: Scored = {}
    kinds: Counter[Kind] = Counter()
    lacking: list[str] = []
    for clients, found in answers:
        who = f"clients {few(clients, names)}"
        if found is None:
            lacking.append(f"{who}: no reply")
        elif isinstance(found, Rejected):
            kinds[found.kind] += 1
            lacking.append(f"{who}: {found.reason}")
            told = "round %d: %s lack scores (%s): %s"
            _log.warning(told, server_round, who, found.kind, found.reason)
        else:
            scores |= found
    more = f"; ... {len(lacking)} in all" if len(lacking) > _TOLD else ""
    return scores, kinds, "; ".join(lacking[:_TOLD]) + more


def screen_scores(
    content: Content, *, server_round: int, asked: Sequence[int], columns: Sequence[Column]
) -> Scored | Rejected:
    """Checks the content of a reply to an evaluation, for ``read_reply``.

    Raises:
        KeyError: If an entry is missing.
        TypeError, ValueError: If it is something else.
    """
    record = content[CLIENTS]
    number, ids = read_int(record, "server-round"), read_list(record, "ids", int)
    if record.get(WITHHELD):
        columns = [column._replace(optional=True) for column in columns]
    scored = read_scores(record, ids, columns, "queries", least=1)
    if number != server_round:
        return Rejected.of("round", f"it is of round {brief(number)}")
    if ids != list(asked):
        return Rejected.of("clients", f"{few(asked)} were asked, {brief(ids)} answered")
    return scored
