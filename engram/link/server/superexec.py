"""Flower's SuperExec, starting the coordinator's process without exposing its token.

Run as ``python -m engram.link.server.superexec`` with the arguments of ``flower-superexec``.
"""

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any

from engram.core.machine import end_with_parent
from engram.link.flower import run_superexec
from engram.server.status import STARTER
from engram.settings.logs import begin_log
from engram.wire.counters import beat

_TOKEN = "--token"
_AGAIN = 5  # times that an app is started again: whatever kills it then kills it always
_log = getLogger("flwr.engram")


def start(
    arguments: Sequence[str], *, again: int = _AGAIN, **options: Any
) -> subprocess.Popen[bytes]:
    """Starts one of Flower's apps, with its token in a file rather than in its arguments.

    Any user could read it there with `ps`. The file is private and unnamed, and vanishes with the
    last process that has it open.

    An app that is killed (SIGKILL) is started again, at most ``again`` times. If it had not begun
    its run, it begins it now; else the SuperLink refuses it, and is told by it at once that the run
    has failed, instead of finding out when the killed process has been silent for minutes.
    """
    at = list(arguments).index(_TOKEN)
    before, token, after = arguments[:at], arguments[at + 1], arguments[at + 2 :]
    with tempfile.TemporaryFile() as file:
        file.write(token.encode())
        file.seek(0)
        command = [*before, "--token-file", f"/dev/fd/{file.fileno()}", *after]
        process = subprocess.Popen(command, pass_fds=[file.fileno()], **options)

    def start_again_if_killed() -> None:
        if process.wait() == -signal.SIGKILL and again:
            _log.warning("%s was killed: it is started again", command[0])
            start(arguments, again=again - 1, **options).wait()  # which ends with this thread

    threading.Thread(target=start_again_if_killed, daemon=True).start()
    return process


if __name__ == "__main__":
    begin_log()
    end_with_parent()
    run_superexec(start, partial(beat, Path(os.environ["FLWR_HOME"]) / STARTER))
