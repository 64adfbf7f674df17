"""Ctrl-C while modules are imported."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def end_at_once() -> Iterator[None]:
    """Lets Ctrl-C end the process at once, with status 130; for imports that take seconds.

    A KeyboardInterrupt raised while an extension is imported may be lost, or end in a traceback.
    Use this only where there is nothing to clean up.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # a script's background jobs ignore SIGINT
        signal.signal(signal.SIGINT, lambda signum, frame: os._exit(130))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
