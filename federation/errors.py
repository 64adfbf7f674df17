"""The ways in which a run can fail, by what its user can do about it."""

import reprlib
from collections.abc import Sequence
from typing import Final

__all__ = [
    "BUSY",
    "REFUSED",
    "UNFINISHED",
    "UNUSABLE",
    "DataError",
    "EngramError",
    "Refused",
    "RunStopped",
    "brief",
    "few",
    "one_line",
]

# Codes of the errors in a node's replies. They stand here, and not beside what else a message has,
# for a node's main process, which does not load torch.
REFUSED: Final = 1002  # of a node that cannot do what it is asked, and says why
BUSY: Final = 1003  # of a node that is at work for another run, and says so
UNUSABLE: Final = 1004  # in place of a reply that is too large, or that cannot be read
UNFINISHED: Final = 1005  # in place of a reply of which parts did not come

_LONGEST: Final = 300  # characters of somebody else's text that a message shows


class EngramError(Exception):
    """Base of all errors that are meant for a user: one line, no traceback needed."""


class Refused(EngramError, ValueError):
    """What was asked for cannot be: said before anything is started or written."""


class DataError(Refused):
    """A data set is missing, malformed, or too small for what was asked of it."""


class RunStopped(EngramError):
    """A run that had started cannot go on; its last good checkpoint is kept."""


def few(clients: Sequence[int]) -> str:
    """Returns client numbers for a message: all of them, or the first where there are many."""
    shown = ", ".join(map(str, clients[:20]))
    return f"[{shown}, ... {len(clients)} in all]" if len(clients) > 20 else f"[{shown}]"


def one_line(text: str) -> str:
    """Returns what somebody else wrote, for a message: one line, printable, of bounded length.

    What is not printable is escaped, so that it neither starts a line nor moves the cursor. Of a
    long text both ends are shown: an exception says what happened at its end.
    """
    plain = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in _cut(text))
    return _cut("".join(plain))


def brief(value: object) -> str:
    """Returns the ``repr`` of what somebody else sent, without ever making a long one."""
    return _SHORT.repr(value)


def _cut(text: str) -> str:
    half = (_LONGEST - 5) // 2
    return text if len(text) <= _LONGEST else f"{text[:half]} ... {text[-half:]}"


class _Short(reprlib.Repr):
    """Adds what ``reprlib`` does in full before it shortens it, or not at all."""

    def repr_bytes(self, x: bytes, level: int) -> str:
        del level
        return repr(x[: self.maxstring]) + ("..." if len(x) > self.maxstring else "")

    def repr_int(self, x: int, level: int) -> str:
        digits = x.bit_length() <= 128  # Python refuses to write out thousands
        return super().repr_int(x, level) if digits else f"<integer of {x.bit_length()} bits>"


_SHORT: Final = _Short()
