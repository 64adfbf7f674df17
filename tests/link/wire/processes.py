"""Processes of a link on this machine, for tests and the benchmark: they can be killed."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PORTS = range(24000, 25000)
_given: set[int] = set()


def free_port() -> int:
    """Returns a port that is free now, in the range of the tests."""
    start: int = os.getpid() % len(_PORTS)
    for port in [*_PORTS[start:], *_PORTS[:start]]:
        with contextlib.suppress(OSError), socket.socket() as probe:
            if port not in _given:
                probe.bind(("127.0.0.1", port))
                _given.add(port)
                return port
    raise OSError("no port is free")


def started(*arguments: object, log: Path) -> subprocess.Popen[bytes]:
    """Starts ``python ARGUMENTS``."""
    command = [sys.executable, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GRPC_VERBOSITY": "NONE"}
    with log.open("ab") as file:
        return subprocess.Popen(
            command, env=environment, stdout=file, stderr=file, stdin=subprocess.DEVNULL
        )


class Federation:
    """A server and nodes as processes, in a folder that ``new_federation`` has made."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port, self.reached_at = folder, port, port
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *options: object) -> None:
        """Starts the server, or a node that answers as ``tests.link.wire.answers`` does."""
        log, program = (
            self.folder / f"{name[:40]}.log",
            ["-m", "engram.link.server.hub", self.folder / "server"],
        )
        if name == "server":
            program += [f"127.0.0.1:{self.port}"]
        else:
            program = [
                "-m",
                "tests.link.wire.answers",
                f"127.0.0.1:{self.reached_at}",
                self.folder,
                name,
            ]
        self.running[name] = started(*program, *options, log=log)

    def kill(self, name: str, how: int = signal.SIGKILL) -> None:
        """Kills a process, by its number."""
        process = self.running.pop(name)
        process.send_signal(how)
        process.wait(20)

    def close(self) -> None:
        """Ends all processes."""
        for name in list(self.running):
            self.kill(name)


@contextlib.contextmanager
def federation(folder: Path, names: Sequence[str], *options: object) -> Iterator[Federation]:
    """Yields a federation with a server and some nodes."""
    found = Federation(folder, free_port())
    try:
        found.start("server")
        for name in names:
            found.start(name, *options)
        yield found
    finally:
        found.close()


def until(true: object, seconds: float = 30.0) -> None:
    """Waits until a function returns something true."""
    end = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.02)
