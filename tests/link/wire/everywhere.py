"""A short run that is disturbed once, at one place after the other, and must give what it gives.

``python -m tests.link.wire.everywhere connection`` cuts a node's connection after the first record
of TLS that has passed to the server since it was made, then after the second, and so on through a
whole run; then after each record from the server. With ``server``, ``client-0``, ``worker`` or
``coordinator`` it kills that process there (SIGKILL), and starts it again.
"""

import itertools
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated

import psutil
import typer

from benchmarks.chaos import compare, settings
from engram.link.credentials import read_server
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


class Place:
    """The place after a number of records in one direction, at which something is done once."""

    def __init__(self, number: int, *, up: bool, act: Callable[[], None]) -> None:
        self._left, self._up, self._act = number, up, act

    @property
    def reached(self) -> bool:
        """Whether so many records have passed."""
        return self._left <= 0

    def __call__(self, up: bool) -> None:
        """Counts a record."""
        self._left -= up is self._up
        if self._left == 0 and up is self._up:
            self._act()


class Everywhere(Processes):
    """A federation whose first client's connection, or processes, are disturbed."""

    program = "tests.link.wire.learners"

    def __init__(self, folder: Path) -> None:
        new_federation(folder / "fed", CLIENTS)
        super().__init__(folder / "fed")
        self._out, self._runs, self._proxy = folder, itertools.count(), Proxy(self.port)
        self._settings = settings(ROUNDS) | {"local-steps": 5, "checkpoint-every": 2}

    def __enter__(self) -> "Everywhere":
        for name in ("server", *(f"client-{client}" for client in range(CLIENTS))):
            self.start(name)
        return self

    def __exit__(self, *error: object) -> None:
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
        out, server = self._out / f"run-{next(self._runs)}", self.folder / "server"
        place = Place(number, up=up, act=partial(self._disturb, target))
        self._proxy.cut(0.0)  # the node makes a new connection soon
        self._proxy.watch = place
        experiment = Experiment.from_config(self._settings)
        if target == "coordinator":
            run_deployed(experiment, out, server)
        else:
            link = Link(server, str(run_number(out)))
            grid = LinkGrid(link, run_number(out), experiment, out)
            membership = Membership(server, read_server(server).settings.clients)
            run_on_nodes(grid, experiment, out, membership)
            link.close(over=True)
        self._proxy.watch = lambda up: None
        calm = out.with_name(f"{out.name}-calm")
        simulate(Experiment.from_config(self._settings | {"participation": str(out)}), calm)
        found = compare(self.folder, calm, out, ROUNDS, {}, 0.0)
        where = f"{target}, after {number} records {'to' if up else 'from'} the server: {found}"
        assert max(found.difference, found.memory_difference) <= 1e-6, where
        assert found.memories_lost == found.rounds_lost == 0, where
        return place.reached

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

    def killed() -> bool:
        for child in parent.children():
            if any(name in argument for argument in child.cmdline()):
                child.kill()
                return True
        return False

    until(killed)


def sweep(everywhere: Everywhere, target: str, numbers: Iterable[int], *, up: bool) -> int:
    """Disturbs a run at places until it has no more; returns their number."""
    for count, number in enumerate(numbers):
        if not everywhere.disturbed(target, number, up=up):
            return count
    return count + 1


def main(target: Annotated[str, typer.Argument(help=", ".join(TARGETS))], every: int = 1) -> None:
    """Prints how many places were disturbed; ends with an error where a run was harmed."""
    with tempfile.TemporaryDirectory() as folder, Everywhere(Path(folder)) as everywhere:
        for up, way in ((True, "to"), (False, "from")):
            count = sweep(everywhere, target, itertools.count(1, every), up=up)
            print(f"{target}: {count} places after records {way} the server, none of them harmful")


if __name__ == "__main__":
    typer.run(main)
