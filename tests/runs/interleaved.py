"""Runs calls in an order of their file operations that a test chooses."""

import fcntl
import os
import threading
from contextlib import suppress

from engram.settings.errors import Refused

OPERATIONS = [(os, name) for name in ("mkdir", "rmdir", "open", "stat", "lstat", "listdir")]
OPERATIONS += [(fcntl, "flock")]


class Call(threading.Thread):
    """A call that goes on to its next file operation whenever it is told to."""

    def __init__(self, act, number):
        super().__init__(daemon=True)
        self.act, self.number = act, number
        self.result = self.error = None
        self.turn, self.paused = threading.Semaphore(0), threading.Semaphore(0)

    def run(self):
        self.turn.acquire()
        try:
            self.result = self.act(self.number)
        except BaseException as error:  # whatever it is, the test looks at it
            self.error = error
        self.act = None
        self.paused.release()

    def pause(self):
        self.paused.release()
        self.turn.acquire()

    def step(self):
        self.turn.release()
        self.paused.acquire()


def pausing(operation):
    def paused(*args, **options):
        if isinstance(call := threading.current_thread(), Call):
            call.pause()
        return operation(*args, **options)

    return paused


def interleave(monkeypatch, act, count, schedule):
    """Calls ``act`` with 0, 1, ..., ``count`` - 1, each one file operation at a time.

    ``schedule`` gives the calls' turns; what is left after it runs to its end in order. Returns the
    results of the calls that were not refused.
    """
    calls = [Call(act, number) for number in range(count)]
    with monkeypatch.context() as patch:
        for module, name in OPERATIONS:
            patch.setattr(module, name, pausing(getattr(module, name)))
        for call in calls:
            call.start()
        for number in (*schedule, *(n for n in range(count) for _ in range(500))):
            if calls[number].act:
                calls[number].step()
    assert not any(call.act for call in calls)
    for call in calls:
        with suppress(Refused):
            if call.error is not None:
                raise call.error
    return [call.result for call in calls if call.error is None]
