"""The ways in which a run can fail, by what its user can do about it."""

__all__ = ["DataError", "EngramError", "Refused", "RunStopped"]


class EngramError(Exception):
    """Base of all errors that are meant for a user: one line, no traceback needed."""


class Refused(EngramError, ValueError):
    """What was asked for cannot be: said before anything is started or written."""


class DataError(Refused):
    """A data set is missing, malformed, or too small for what was asked of it."""


class RunStopped(EngramError):
    """A run that had started cannot go on; its last good checkpoint is kept."""
