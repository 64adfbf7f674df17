"""Starts the coordinator's process: Flower's SuperExec, without a token that others can read.

Run as ``python -m server.superexec`` with the arguments of ``flower-superexec``.
"""

import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any

from federation.flower import run_superexec

_TOKEN = "--token"


def start(arguments: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts one of Flower's apps; its token, which every user's `ps` shows, goes by a file.

    The file has no name, is this user's alone, and is gone when those who have it open are.
    """
    at = list(arguments).index(_TOKEN)
    before, token, after = arguments[:at], arguments[at + 1], arguments[at + 2 :]
    with tempfile.TemporaryFile() as file:
        file.write(token.encode())
        file.seek(0)
        command = [*before, "--token-file", f"/dev/fd/{file.fileno()}", *after]
        return subprocess.Popen(command, pass_fds=[file.fileno()], **options)


if __name__ == "__main__":
    run_superexec(start)
