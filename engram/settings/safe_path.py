"""Processes that import nothing from the folder that they happen to be started in."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_VARIABLE: Final = "PYTHONSAFEPATH"
SAFE: Final = {_VARIABLE: "1"}
"""Environment of Python in which a module beside its start hides none of the standard library."""

_lock = threading.Lock()
_inside: Final[list[bool]] = []  # for each call under way, whether it has set the variable


@contextmanager
def safe_path() -> Iterator[None]:
    """Gives processes that are started meanwhile a safe path, with their helpers and children.

    The environment is that of the whole process: calls in several threads share the change, and
    the last one undoes it. The paths that a process is sent by its owner, such as those of
    plug-ins, are added to the safe one.
    """
    with _lock:
        _inside.append(_VARIABLE not in os.environ)
        os.environ.setdefault(_VARIABLE, SAFE[_VARIABLE])
    try:
        yield
    finally:
        with _lock:
            ours = _inside[0]
            _inside.pop()
            if ours and not _inside:
                os.environ.pop(_VARIABLE, None)
