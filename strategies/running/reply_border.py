"""Reading of replies: any exception is the fault of the sender."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from logging import getLogger
from typing import Final, Literal, NamedTuple, Self, TypeVar

from engram.settings.errors import one_line
from engram.wire.messages import Content, Reply
from engram.wire.wire import CLIENTS, DIVERGED, NOISE, read_list

_log = getLogger("flwr.engram")

_T = TypeVar("_T")

REASONS: Final = 400  # characters of what a node says of its clients that diverged

_OfReplies = Literal["error", "diverged", "malformed", "round", "clients", "size", "names"]
_OfNumbers = Literal["shapes", "non-finite", "range", "scores"]
Kind = Literal[_OfReplies, _OfNumbers]


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
        reason: One line of bounded length, for the log.
    """

    kind: Kind
    reason: str

    @classmethod
    def of(cls, kind: Kind, reason: str) -> Self:
        """Makes the reason one line of bounded length."""
        return cls(kind, one_line(reason))


def read_reply(reply: Reply, read: Callable[[Content], _T]) -> _T | Rejected:
    """Reads a reply, or returns why it is left out; raises nothing.

    Args:
        reply: The reply, which may hold anything.
        read: Reads and checks its content. It may raise any exception, and must have changed
            nothing if it does.
    """
    if reply.error:
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


def noised_by(replies: Iterable[Reply], clients: int) -> list[int]:
    """Returns the clients with local privacy's noise in their scores, as nodes report it."""
    found = set[int]()
    for reply in replies:
        record = reply.content.get(CLIENTS, {})
        if NOISE in record:
            with suppress(KeyError, TypeError):  # which screening leaves out
                found.update(read_list(record, "ids", int))
    return sorted(found & {*range(clients)})
