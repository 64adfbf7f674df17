"""Processes of a link on this machine, for tests and the benchmark: they can be killed."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from engram.link.server.identity import init_federation

ROOT = Path(__file__).parents[3]
PATIENCE = 900.0  # seconds after which a process hangs, however slow and busy the machine is


def free_port() -> int:
    """Returns a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def new_federation(folder: Path, clients: int) -> None:
    """Makes a federation whose server can be reached at any port of this machine."""
    init_federation(folder, clients=clients, hosts=[], superlink="127.0.0.1:9092", days=30)


class Processes:
    """A server and nodes as processes of a program, of a federation's folder."""

    program = "tests.link.wire.answers"

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.reached_at = self.port
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Starts the server, or a node, or several with commas between."""
        port = self.port if name == "server" else self.reached_at
        command = [sys.executable, "-m", self.program]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "GRPC_VERBOSITY": "NONE"}
        with (self.folder / f"{name[:40]}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [*command, f"127.0.0.1:{port}", str(self.folder), name],
                env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def end(self, name: str, how: int = signal.SIGKILL) -> None:
        """Ends a process, by its number."""
        process = self.running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(how)
        process.wait(PATIENCE)

    def close(self) -> None:
        """Ends all processes."""
        for name in [*self.running]:
            self.end(name)


def until(true: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Waits until a function returns something true."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.02)
