"""A whole federation on this machine: SuperLink and nodes as processes, over loopback."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Literal, Self

import psutil

from engram.link.credentials import read_node
from engram.link.server.identity import add_client, init_federation
from engram.link.server.launch import Launch, program, superlink_command
from engram.link.server.registration import register_clients
from engram.settings.errors import RunStopped

Nodes = Literal["engram", "together", "stock"]
_PATIENCE = 60.0  # seconds that a process may take which has not worked meanwhile, until it is up
_WORK = 0.5  # seconds of processor time, less than which is no work


class LoopbackFederation:
    """A federation in a folder, and its processes. Use it as a context manager.

    Everything listens on the loopback interface only. The processes are called ``superlink``,
    ``client-0``, ``client-1``, ..., or ``clients`` if all are together, and print to
    ``logs/NAME.log``.

    Args:
        folder: A new or empty folder.
        clients: Number of clients, each with a node.
        nodes: ``engram`` for resident nodes, ``together`` for such nodes in one process,
            ``stock`` for Flower's own.
        insecure: Whether to do without TLS and authentication.
        options: Initial ``options`` of every node.

    Attributes:
        host: Address at which nodes reach the SuperLink.
        options: By node, further arguments of `engram node`, or further entries of a stock node's
            ``--node-config``. Changes take effect at its next start.
        fleet: Port of the SuperLink's Fleet API.
        server: The coordinator's folder.
        control: HOST:PORT of the SuperLink's Control API.
        processes: The started processes, by name.
    """

    host: ClassVar = "127.0.0.1"

    def __init__(
        self,
        folder: Path,
        *,
        clients: int,
        nodes: Nodes = "engram",
        insecure: bool = False,
        options: Sequence[str] = (),
    ) -> None:
        self._folder = folder.absolute()
        self._clients = clients
        self._nodes = nodes
        self._insecure = insecure
        self.options = {name: list(options) for name in self.names[1:]}
        self.fleet, control, *self._runtimes = _free_ports(2 + clients)
        self.server = self._folder / "server"
        self.control = f"127.0.0.1:{control}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def names(self) -> list[str]:
        """Names of all its processes."""
        clients = [f"client-{i}" for i in range(self._clients)]
        return ["superlink", *(["clients"] if self._nodes == "together" else clients)]

    def __enter__(self) -> Self:
        init_federation(
            self._folder,
            clients=self._clients,
            hosts=["127.0.0.1", self.host],
            superlink=f"{self.host}:{self.fleet}",
            days=1,
            insecure=self._insecure,
        )
        (self._folder / "logs").mkdir()
        try:
            self.start("superlink")
            if not self._insecure:
                self._register()
            for name in self.names[1:]:
                self.start(name)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def add(self, options: Sequence[str] = ()) -> str:
        """Adds a client while the others go on, and starts its node; returns its name.

        ``options`` are as in the attribute.
        """
        name = add_client(self._folder).name
        if not self._insecure:
            self._register()
        self._clients += 1
        self._runtimes += _free_ports(1)
        self.options[name] = list(options)
        self.start(name)
        return name

    def start(self, name: str) -> None:
        """Starts one of the processes; waits until a SuperLink is ready.

        Raises:
            RunStopped: If the SuperLink ended at once, or is not ready in time.
        """
        launch = self._launch(name)
        with self.log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                launch.argv,
                env=launch.env,
                cwd=launch.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only us; we stop them in order
            )
        if name == "superlink":
            self._await(name)

    def kill(self, name: str) -> None:
        """Kills a process and its children, as a power cut would."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Ends all processes, the SuperLink last."""
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

    def _register(self) -> None:
        """Registers all keys, as long as some come to be known: a busy machine may be too slow."""
        known = -1
        while True:
            try:
                list(register_clients(self.server, control=self.control))
                return
            except RunStopped:
                before, known = known, len(list((self.server / "clients").glob("*.node")))
                if known == before:
                    raise

    def _launch(self, name: str) -> Launch:
        if name == "superlink":
            return superlink_command(self.server, control=self.control)
        own, options = self._folder / name, self.options.get(name, [])
        if name == "clients":
            folders = [str(self._folder / f"client-{i}") for i in range(self._clients)]
            return program("engram", "node", *folders, *options, home=self._folder / "flwr")
        if self._nodes == "engram":
            return program("engram", "node", str(own), *options, home=own / "flwr")
        return self._stock(own, options)

    def _stock(self, own: Path, options: Sequence[str]) -> Launch:
        credentials = read_node(own)
        number, among = credentials.partition_id, credentials.num_partitions
        entries = f'partition-id={number} num-partitions={among} state="{own / "state"}"'
        security = ["--insecure"]
        if credentials.root_certificate:
            security = [
                *("--root-certificates", str(credentials.root_certificate)),
                *("--auth-supernode-private-key", str(credentials.private_key)),
            ]
        return program(
            "flower-supernode",
            *security,
            *("--superlink", credentials.superlink),
            *("--node-config", " ".join([entries, *options])),
            *("--host", "127.0.0.1"),
            *("--port", str(self._runtimes[number])),
            home=own / "flwr",
        )

    def _await(self, name: str) -> None:
        process, worked = psutil.Process(self.processes[name].pid), 0.0
        end = time.monotonic() + _PATIENCE
        ports = [self.fleet, int(self.control.rpartition(":")[2])]
        while ports:
            if self.processes[name].poll() is not None or time.monotonic() > end:
                raise RunStopped(f"the {name} did not start: see {self.log(name)}")
            try:
                socket.create_connection(("127.0.0.1", ports[0]), timeout=1).close()
                ports.pop(0)
            except OSError:
                time.sleep(0.1)
                spent = sum(process.cpu_times()[:2])
                if spent > worked + _WORK:
                    worked, end = spent, time.monotonic() + _PATIENCE


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
