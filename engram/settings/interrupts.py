"""Ctrl-C while modules are imported."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
