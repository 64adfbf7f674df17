"""Flower's SuperExec, starting the coordinator's process without exposing its token.

Run as ``python -m server.superexec`` with the arguments of ``flower-superexec``.
"""

import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any

from federation.flower import run_superexec
from federation.logs import begin_log

_TOKEN = "--token"


def start(arguments: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts one of Flower's apps, with its token in a file rather than in its arguments.

    Any user could read it there with `ps`. The file is private and unnamed, and vanishes with the
    last process that has it open.
    """
    at = list(arguments).index(_TOKEN)
    before, token, after = arguments[:at], arguments[at + 1], arguments[at + 2 :]
    with tempfile.TemporaryFile() as file:
        file.write(token.encode())
        file.seek(0)
        command = [*before, "--token-file", f"/dev/fd/{file.fileno()}", *after]
        return subprocess.Popen(command, pass_fds=[file.fileno()], **options)


if __name__ == "__main__":
    begin_log()
    run_superexec(start)
