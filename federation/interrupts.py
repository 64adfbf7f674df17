"""Ctrl-C while modules are imported."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def end_at_once() -> Iterator[None]:
    """Lets Ctrl-C end the process at once, with status 130; for imports that take seconds.

    Raised inside some extension's import, a KeyboardInterrupt is lost, or ends the process as if
    nobody had handled it. To be used where there is nothing to be put in order first.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # else it is ignored, in the background of a script
        signal.signal(signal.SIGINT, lambda signum, frame: os._exit(130))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
