"""The ways in which a run can fail, by what its user can do about it."""

from collections.abc import Sequence

__all__ = ["DataError", "EngramError", "Refused", "RunStopped", "few"]


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
