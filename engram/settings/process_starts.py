"""Starts of processes: a safe path for modules, and Ctrl-C while they are imported."""

import os
import signal
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


@contextmanager
def end_at_once() -> Iterator[None]:
    """Lets Ctrl-C end the process at once, with status 130; for imports that take seconds.

    A KeyboardInterrupt raised while an extension is imported may be lost, or end in a traceback.
    Use this only where there is nothing to clean up. Ctrl-C comes to the main thread alone.
    """
    before = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or before is not signal.default_int_handler:  # background jobs ignore SIGINT
        yield
        return
    signal.signal(signal.SIGINT, lambda signum, frame: os._exit(130))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
