"""A whole federation on this machine: server and nodes as processes, over loopback."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from engram.link.run import status
from engram.link.server.identity import add_client, init_federation
from engram.settings.errors import Refused, RunStopped
from engram.settings.process_starts import SAFE

_PATIENCE = 60.0  # seconds that a server may take until it answers


class LoopbackFederation:
    """A federation in a folder, and its processes. Use it as a context manager.

    Everything listens on the loopback interface only. The processes are called ``superlink``,
    ``client-0``, ``client-1``, ..., or ``clients`` if all are together, and print to
    ``logs/NAME.log``.

    Args:
        folder: A new or empty folder.
        clients: Number of clients, each with a node.
        together: Whether the nodes are in one process.
        options: Initial ``options`` of every node.

    Attributes:
        host: Address at which nodes reach the server.
        options: By node, further arguments of `engram node`. Changes take effect at its next start.
        fleet: Port at which the server listens for nodes.
        server: The server's folder.
        processes: The started processes, by name.
    """

    host: ClassVar = "127.0.0.1"

    def __init__(
        self, folder: Path, *, clients: int, together: bool = False, options: Sequence[str] = ()
    ) -> None:
        self._folder = folder.absolute()
        self._clients = clients
        self._together = together
        self.options = {name: list(options) for name in self.names[1:]}
        self.fleet = _free_port()
        self.server = self._folder / "server"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def names(self) -> list[str]:
        """Names of all its processes."""
        clients = [f"client-{i}" for i in range(self._clients)]
        return ["superlink", *(["clients"] if self._together else clients)]

    def __enter__(self) -> Self:
        at = f"{self.host}:{self.fleet}"
        init_federation(self._folder, clients=self._clients, hosts=(), superlink=at, days=1)
        (self._folder / "logs").mkdir()
        try:
            self.start("superlink")
            for name in self.names[1:]:
                self.start(name)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def add(self, options: Sequence[str] = ()) -> str:
        """Adds a client while the others go on, and starts its node; returns its name.

        ``options`` are as in the attribute.
        """
        name = add_client(self._folder).name
        self._clients += 1
        self.options[name] = list(options)
        self.start(name)
        return name

    def start(self, name: str) -> None:
        """Starts one of the processes; waits until a server is ready.

        Raises:
            RunStopped: The server is not ready in time.
        """
        with self.log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                self._command(name),
                env=os.environ | SAFE,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only us; we stop them in order
            )
        if name == "superlink":
            self._await(self.processes[name])

    def kill(self, name: str) -> None:
        """Kills a process and its children, as a power cut would."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Ends all processes, the server last."""
        for name in sorted(self.processes):  # "client-0" comes before "superlink"
            self.processes[name].terminate()
        for name in sorted(self.processes):
            try:
                self.processes[name].wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.kill(name)
        self.processes.clear()

    def log(self, name: str) -> Path:
        """Returns the log file of a process."""
        return self._folder / "logs" / f"{name}.log"

    def _await(self, process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                status(self.server, patience=0.5)
                return
            except Refused as error:
                if process.poll() is not None or time.monotonic() > end:
                    log = self.log("superlink")
                    raise RunStopped(f"the server did not start: see {log}") from error

    def _command(self, name: str) -> list[str]:
        engram = [sys.executable, "-P", "-m", "engram"]
        if name == "superlink":
            return [*engram, "superlink", str(self.server)]
        clients = range(self._clients) if name == "clients" else [name.removeprefix("client-")]
        folders = [str(self._folder / f"client-{client}") for client in clients]
        return [*engram, "node", *folders, *self.options[name]]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
