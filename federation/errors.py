"""The ways in which a run can fail, by what its user can do about it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from engram.brief import brief

__all__ = [
    "BUSY",
    "REFUSED",
    "UNFINISHED",
    "UNNAMED",
    "UNUSABLE",
    "DataError",
    "EngramError",
    "Refused",
    "RunStopped",
    "brief",
    "few",
    "few_names",
    "one_line",
    "together",
]

# Codes of the errors in a node's replies. They stand here, and not beside what else a message has,
# for a node's main process, which does not load torch.
REFUSED: Final = 1002  # of a node that cannot do what it is asked, and says why
BUSY: Final = 1003  # of a node that is at work for another run, and says so
UNUSABLE: Final = 1004  # in place of a reply that is too large, or that cannot be read
UNFINISHED: Final = 1005  # in place of a reply of which parts did not come

UNNAMED: Final[Mapping[int, str]] = MappingProxyType({})  # of clients: they have numbers alone

_LONGEST: Final = 300  # characters of somebody else's text that a message shows
_MESSAGE: Final = 2000  # characters of a message


class EngramError(Exception):
    """Base of all errors that are meant for a user: one line, no traceback needed.

    Whatever the message repeats of what a user, a file or another machine gave, its length is
    bounded.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message, longest=_MESSAGE))


class Refused(EngramError, ValueError):
    """What was asked for cannot be: said before anything is started or written."""


class DataError(Refused):
    """A data set is missing, malformed, or too small for what was asked of it."""


class RunStopped(EngramError):
    """A run that had started cannot go on; its last good checkpoint is kept."""


def together(error: Refused, check: Callable[[], object]) -> Refused:
    """Returns an error that says, too, what another check refuses, if it refuses anything.

    The check may be of what was refused already, and may fail for that reason.
    """
    try:
        check()
    except Refused as other:
        return type(error)(f"{error}; {other}")
    except ValueError:
        return error
    return error


def few(clients: Sequence[int], names: Mapping[int, str] = UNNAMED) -> str:
    """Returns clients for a message: all of them, or the first where there are many.

    Args:
        clients: Their numbers.
        names: What some are called instead, by number.
    """
    shown = ", ".join(str(names.get(client, client)) for client in clients[:20])
    return f"[{shown}, ... {len(clients)} in all]" if len(clients) > 20 else f"[{shown}]"


def few_names(names: Iterable[object]) -> str:
    """Returns names for a message: all of them, or the first where there are many."""
    some = list(map(str, names))
    shown = ", ".join(map(one_line, some[:20]))
    return f"{shown}, ... {len(some)} in all" if len(some) > 20 else shown


def one_line(text: str, *, longest: int = _LONGEST) -> str:
    """Returns what somebody else wrote, for a message: one line, printable, of bounded length.

    What is not printable is escaped, so that it neither starts a line nor moves the cursor. Of a
    long text both ends are shown: an exception says what happened at its end.
    """
    cut = _cut(text, longest)
    plain = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
    return _cut("".join(plain), longest)


def _cut(text: str, longest: int) -> str:
    half = (longest - 5) // 2
    return text if len(text) <= longest else f"{text[:half]} ... {text[-half:]}"
