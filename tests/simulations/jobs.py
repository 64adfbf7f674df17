"""Jobs for a pool, which import next to nothing, since each process that begins does it again."""

import os
import signal
import time

from engram.settings.errors import Refused


def square(number, report):
    report(1, 2)
    time.sleep(0.15)  # so that it is seen from another process
    report(2, 2)
    return [{"number": number, "errors": [number**2]}]


def refuse(report):
    time.sleep(0.5)
    raise Refused("no")


def divide(report):
    time.sleep(0.5)
    return 1 / 0


def sleep(report):
    time.sleep(60)


def die(report):
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def alive(session):
    """Whether a process of the session is left."""
    try:
        os.killpg(session, 0)
    except ProcessLookupError:
        return False
    return True
