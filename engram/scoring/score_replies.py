"""Reading of clients' scores from the replies to an evaluation, without impossible replies."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from logging import getLogger

from flwr.app import Message, RecordDict

from engram.scoring.evaluation import Scored, read_scores
from engram.scoring.score_columns import Column
from engram.settings.errors import Names, brief, few
from engram.strategies.reply_border import Kind, Rejected, read_reply
from engram.wire.wire import CLIENTS, WITHHELD, read_int, read_list

_log = getLogger("flwr.engram")

_TOLD = 10  # most reasons that are listed


def collect_scores(
    answers: Mapping[str, Message],
    asked: Sequence[tuple[Message, list[int]]],
    *,
    server_round: int,
    columns: Sequence[Column],
    names: Names,
) -> tuple[Scored, Counter[Kind], str]:
    """Returns the scores by client, the number of rejected replies by kind, and why others lack."""
    scores: Scored = {}
    kinds: Counter[Kind] = Counter()
    lacking: list[str] = []
    for message, clients in asked:
        reply = answers.get(message.metadata.message_id)
        who = f"clients {few(clients, names)}"
        if reply is None:
            lacking.append(f"{who}: no reply")
            continue
        read = partial(screen_scores, server_round=server_round, asked=clients, columns=columns)
        found = read_reply(reply, read)
        if isinstance(found, Rejected):
            kinds[found.kind] += 1
            lacking.append(f"{who}: {found.reason}")
            told = "round %d: %s lack scores (%s): %s"
            _log.warning(told, server_round, who, found.kind, found.reason)
        else:
            scores |= found
    more = f"; ... {len(lacking)} in all" if len(lacking) > _TOLD else ""
    return scores, kinds, "; ".join(lacking[:_TOLD]) + more


def screen_scores(
    content: RecordDict, *, server_round: int, asked: Sequence[int], columns: Sequence[Column]
) -> Scored | Rejected:
    """Checks the content of a reply to an evaluation, for ``read_reply``.

    Raises:
        KeyError: If an entry is missing.
        TypeError, ValueError: If it is something else.
    """
    record = content.config_records[CLIENTS]
    number, ids = read_int(record, "server-round"), read_list(record, "ids", int)
    if record.get(WITHHELD):
        columns = [column._replace(optional=True) for column in columns]
    scored = read_scores(record, ids, columns, "queries", least=1)
    if number != server_round:
        return Rejected.of("round", f"it is of round {brief(number)}")
    if ids != list(asked):
        return Rejected.of("clients", f"{few(asked)} were asked, {brief(ids)} answered")
    return scored
