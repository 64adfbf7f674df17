"""Reading of replies: any exception is the fault of the sender."""

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from logging import getLogger
from typing import Final, Literal, NamedTuple, Self, TypeVar

from flwr.app import Message, RecordDict

from engram.settings.errors import one_line
from engram.wire.wire import CLIENTS, DIVERGED, NOISE, read_list

_log = getLogger("flwr.engram")

_T = TypeVar("_T")

REASONS: Final = 400  # characters of what a node says of its clients that diverged

_OfReplies = Literal["error", "diverged", "malformed", "round", "clients", "size", "names"]
_OfNumbers = Literal["shapes", "non-finite", "range", "scores"]
Kind = Literal[_OfReplies, _OfNumbers, "sender", "replay", "stray"]


class Impossible(ValueError):
    """An error of a node that sent impossible scores."""


class Rejected(NamedTuple):
    """A reply that is left out.

    Attributes:
        kind: ``error``: the node reports an error. ``diverged``: it reports that the models of all
            its clients diverged. ``malformed``: a record or an entry is missing or of another type,
            or an array is not what it is declared to be. ``round``: it belongs to another round.
            ``clients``: its clients are not those that were asked, each once and in their order.
            ``size``: its number of examples differs from the roster's, or its model lies much
            farther from the old one than others do. ``names``: its arrays have other names.
            ``shapes``: they have other shapes or dtypes. ``non-finite``: a parameter or a loss is
            NaN, infinite or too large for float32, or a running variance is below zero.
            ``range``: a share, a choice or an amount is out of its range.
            ``scores``: a score, a loss or a number of queries is impossible.
            The other kinds are of replies that do not count, see ``first_answers``. ``sender``:
            another node was asked. ``replay``: the message was answered before. ``stray``: the
            message was not sent in this round.
        reason: One line of bounded length, for the log.
    """

    kind: Kind
    reason: str

    @classmethod
    def of(cls, kind: Kind, reason: str) -> Self:
        """Makes the reason one line of bounded length."""
        return cls(kind, one_line(reason))


def first_answers(
    replies: Iterable[Message], asked: Iterable[Message]
) -> tuple[dict[str, Message], Counter[Kind]]:
    """Finds the reply that counts for each message: the first one from the node that was asked.

    Returns:
        Replies by the id of the message that they answer, and how many others there are, by kind:
        ``sender``, ``replay`` and ``stray``.
    """
    questions = {message.metadata.message_id: message.metadata for message in asked}
    answers: dict[str, Message] = {}
    others: Counter[Kind] = Counter()
    for reply in replies:
        name = reply.metadata.reply_to_message_id
        question = questions.get(name)
        if question is None:
            others["stray"] += 1
            continue
        # An error that Flower reports for a node carries the server's own node id.
        senders = {question.dst_node_id, *([question.src_node_id] if reply.has_error() else [])}
        if reply.metadata.src_node_id not in senders:
            others["sender"] += 1
        elif name in answers:
            others["replay"] += 1
        else:
            answers[name] = reply
    return answers, others


def read_reply(reply: Message, read: Callable[[RecordDict], _T]) -> _T | Rejected:
    """Reads a reply, or returns why it is left out; raises nothing.

    Args:
        reply: The reply, which may hold anything.
        read: Reads and checks its content. It may raise any exception, and must have changed
            nothing if it does.
    """
    if reply.has_error():
        kind: Kind = "diverged" if reply.error.code == DIVERGED else "error"
        reason = one_line(reply.error.reason or "no reason given", longest=REASONS)
        return Rejected(kind, reason)
    try:
        return read(reply.content)
    except Impossible as error:
        return Rejected.of("scores", str(error))
    except KeyError as error:
        return Rejected.of("malformed", f"its reply lacks {error}")
    except (TypeError, ValueError) as error:
        return Rejected.of("malformed", str(error))
    except Exception as error:  # one site's reply must not end the run of the others
        _log.debug("a reply cannot be read", exc_info=error)
        return Rejected.of("malformed", f"its reply cannot be read: {error!r}")


def noised_by(replies: Iterable[Message], clients: int) -> list[int]:
    """Returns the clients whose scores have the noise of local privacy, as nodes report it."""
    found = set[int]()
    for reply in replies:
        record = reply.content.config_records.get(CLIENTS) if reply.has_content() else None
        if record is not None and NOISE in record:
            with suppress(KeyError, TypeError):  # which screening leaves out
                found.update(read_list(record, "ids", int))
    return sorted(found & {*range(clients)})
