"""A short run that is disturbed at one place after the other, and must give what it gives.

``python -m tests.link.wire.everywhere connection`` cuts a node's connection after the first record
of TLS that has passed to the server since it was made, then after the second, and so on through a
whole run; then after each record from the server. With ``server``, ``client-0``, ``worker`` or
``coordinator`` it kills that process there (SIGKILL), and starts it again. A second argument takes
every so manieth place alone.
"""

import sys
import tempfile
from itertools import count
from pathlib import Path

import psutil

from benchmarks.chaos import compare, settings
from engram.link.run import Link
from engram.link.server.membership import Membership
from engram.server.app import run_on_nodes
from engram.server.link_grid import LinkGrid
from engram.settings.experiment import Experiment
from engram.simulations.deployed import run_deployed, run_number
from engram.simulations.engine import simulate
from tests.link.wire.cuts import Proxy
from tests.link.wire.learners import CLIENTS
from tests.link.wire.processes import Processes, new_federation, until

ROUNDS = 3
TARGETS = ("connection", "server", "client-0", "worker", "coordinator")


class Everywhere(Processes):
    """A federation whose first client's connection, or processes, are disturbed."""

    program = "tests.link.wire.learners"

    def __init__(self, folder: Path) -> None:
        new_federation(folder / "fed", CLIENTS)
        super().__init__(folder / "fed")
        self._outs, self._proxy = (folder / f"run-{number}" for number in count()), Proxy(self.port)
        self._settings = settings(ROUNDS) | {"local-steps": 5, "checkpoint-every": 2}

    def __enter__(self) -> "Everywhere":
        for name in ("server", *(f"client-{client}" for client in range(CLIENTS))):
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._proxy.close()

    def start(self, name: str) -> None:
        """Starts a process; the first client reaches the server through the proxy."""
        self.reached_at = self._proxy.port if name == "client-0" else self.port
        super().start(name)

    def disturbed(self, target: str, number: int, *, up: bool) -> bool:
        """Runs, and disturbs after a number of records; returns whether there were so many.

        Raises:
            AssertionError: The run is harmed.
        """
        records, out = 0, next(self._outs)

        def watch(passed_up: bool) -> None:
            nonlocal records
            records += passed_up is up
            if records == number and passed_up is up:
                self._disturb(target)

        self._proxy.cut(0.0)  # the node makes a new connection soon
        self._proxy.watch = watch
        self._run(out, alone=target == "coordinator")
        self._proxy.watch = lambda up: None
        calm = out.with_name(f"{out.name}-calm")
        simulate(Experiment.from_config(self._settings | {"participation": str(out)}), calm)
        found = compare(self.folder, calm, out, ROUNDS, {}, 0.0)
        where = f"{target}, after {number} records {'to' if up else 'from'} the server: {found}"
        assert max(found.difference, found.memory_difference) <= 1e-6, where
        assert found.memories_lost == found.rounds_lost == 0, where
        return records >= number

    def _run(self, out: Path, *, alone: bool) -> None:
        """Runs in this process, or in one of its own, ``alone``."""
        experiment, server = Experiment.from_config(self._settings), self.folder / "server"
        if alone:
            run_deployed(experiment, out, server)
            return
        link = Link(server, str(run_number(out)))
        grid = LinkGrid(link, run_number(out), experiment, out)
        run_on_nodes(grid, experiment, out, Membership(server, CLIENTS))
        link.close(over=True)

    def _disturb(self, target: str) -> None:
        if target == "worker":
            _kill(psutil.Process(self.running["client-0"].pid), "spawn_main")
        elif target == "coordinator":
            _kill(psutil.Process(), "engram.simulations.coordinator")
        else:
            if target != "connection":
                self.end(target)
                self.start(target)
            raise ConnectionResetError


def _kill(parent: psutil.Process, name: str) -> None:
    """Kills a child, once it is there."""

    def named() -> list[psutil.Process]:
        return [child for child in parent.children() if name in " ".join(child.cmdline())]

    until(named)
    named()[0].kill()


def main(target: str, every: str = "1") -> None:
    """Prints how many places were disturbed; ends with an error where a run was harmed."""
    with tempfile.TemporaryDirectory() as folder, Everywhere(Path(folder)) as everywhere:
        for up, way in ((True, "to"), (False, "from")):
            for tried, number in enumerate(count(1, int(every))):
                if not everywhere.disturbed(target, number, up=up):
                    print(f"{target}: {tried} places after records {way} the server", flush=True)
                    break


if __name__ == "__main__":
    main(*sys.argv[1:])
