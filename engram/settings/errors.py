"""Errors, by the remedy that a user has, and safe quoting of foreign text."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from logging import LogRecord, getLogger
from types import MappingProxyType
from typing import ClassVar, Final, TextIO, TypeVar

from engram.core.checks import Fault
from engram.core.checks import brief as brief  # noqa: PLC0414 - others take it from here

# Codes of the errors in a node's replies. They are here and not in engram/wire/wire.py because a
# node's main process does not load torch.
REFUSED: Final = 1002  # a node cannot do what it is asked, and says why
BUSY: Final = 1003  # a node is training for another run
UNUSABLE: Final = 1004  # in place of a reply that is too large or cannot be read
AWAITED: Final = 1006  # a node's site has yet to approve the training

Names = Mapping[int, str]
"""Names by client; clients without one are shown by their numbers."""

UNNAMED: Final[Names] = MappingProxyType({})
"""Names of clients that have none."""

T = TypeVar("T")

_LONGEST: Final = 300  # characters of quoted text that a message shows
_MESSAGE: Final = 2000  # characters of a message


class EngramError(Exception):
    """Base of errors meant for a user: one line of bounded length, with its ``faults``.

    Attributes:
        status: With which a command exits.
    """

    status: ClassVar[int] = 1

    def __init__(self, *faults: Fault | str) -> None:
        self.faults = [Fault((), each) if isinstance(each, str) else each for each in faults]
        texts = (fault.text for fault in self.faults)
        super().__init__(one_line("; ".join(texts), longest=_MESSAGE))


class Refused(EngramError, ValueError):
    """A request is impossible; raised before anything is started or written."""

    status = 2


class DataError(Refused):
    """A data set is missing, malformed, or too small for the experiment."""


class RunStopped(EngramError):
    """A run that had started cannot go on; its last good checkpoint is kept."""


def together(
    error: Refused, check: Callable[[], object], told: Callable[[Fault], bool] = lambda fault: True
) -> Refused:
    """Adds the faults of another check to an error.

    Where the check fails with a plain ``ValueError``, which the first fault may have caused, the
    error is returned unchanged. Of the check's faults, those are added for which ``told`` holds.
    """
    try:
        check()
    except Refused as other:
        return type(error)(*error.faults, *filter(told, other.faults))
    except ValueError:
        return error
    return error


def refusals(check: Callable[[], object]) -> list[Fault]:
    """Returns the faults that ``check`` raises."""
    try:
        check()
    except Refused as error:
        return error.faults
    return []


def told_with(wrong: Sequence[Fault], read: Callable[[], T]) -> T:
    """Calls ``read``, which changes nothing; raises its faults together with earlier ones.

    Raises:
        Refused: If there are faults in ``wrong``, or what is read is impossible.
    """
    try:
        found = read()
    except Refused as error:
        if not wrong:
            raise
        raise Refused(*wrong, *error.faults) from error
    if wrong:
        raise Refused(*wrong)
    return found


def few(clients: Sequence[int], names: Names = UNNAMED) -> str:
    """Lists clients, by name or number: all of them, or the first 20 and how many there are."""
    return f"[{few_names(names.get(client, client) for client in clients)}]"


def few_names(names: Iterable[object]) -> str:
    """Lists names for a message: all of them, or the first 20 and how many there are."""
    some = list(names)
    shown = ", ".join(one_line(str(name)) for name in some[:20])
    return f"{shown}, ... {len(some)} in all" if len(some) > 20 else shown


def one_line(text: str, *, longest: int = _LONGEST) -> str:
    """Makes foreign text safe to quote in a message: one printable line of bounded length.

    Unprintable characters are escaped, so that they neither start a line nor move the cursor. A
    long text is cut in the middle, since an exception says at its end what happened.
    """
    return _cut(printable(_cut(text, longest)), longest)


def printable(text: str) -> str:
    """Escapes the unprintable characters of a text."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(*lines: str, file: TextIO | None = None) -> None:
    """Prints lines, with unprintable characters escaped."""
    print(*map(printable, lines), sep="\n", flush=True, file=file)


def _in_one_line(record: LogRecord) -> bool:
    """Makes a log's message one printable line: it may quote a reply, a file's name, a column."""
    record.msg, record.args = one_line(record.getMessage(), longest=_MESSAGE), ()
    return True


getLogger("flwr.engram").addFilter(_in_one_line)


def _cut(text: str, longest: int) -> str:
    half = (longest - 5) // 2
    return text if len(text) <= longest else f"{text[:half]} ... {text[-half:]}"


def need(package: str, extra: str) -> None:
    """Refuses to go on without an optional package, and says how to get it."""
    if find_spec(package) is None:
        raise Refused(f"{package} is not installed: pip install 'engram[{extra}]'")
