"""Nodes of a federation, by its folder, for a run that its SuperLink has started."""

import contextlib
import os
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from flwr.serverapp import Grid

from engram.link.credentials import read_federation
from engram.link.flower import api_of
from engram.link.server.registration import roll
from engram.server.status import members
from engram.settings.errors import EngramError
from engram.settings.experiment import Experiment


class Membership(NamedTuple):
    """A federation, as seen by its coordinator."""

    folder: Path  # the coordinator's folder
    clients: int  # how many clients the federation had when the coordinator began
    insecure: bool = False  # whether it admits any node, without names
    control: str | None = None  # HOST:PORT of its SuperLink's Control API

    def number(self, name: str) -> int | None:
        """Returns the number of the client that a node is registered as; None if it is not."""
        match = re.fullmatch(r"client-(\d{1,9})", name)
        return int(match[1]) if match and not self.insecure else None

    def is_named(self, name: str, client: int) -> bool:
        """Whether a node is registered as the host of this client.

        A run may have more clients than the federation's M: a node then hosts every M-th client,
        from its own number. One that was added since hosts the client of its number.
        """
        number = self.number(name)
        added = number is not None and number >= self.clients
        return number == (client if added else client % self.clients)

    def barred(self) -> set[int]:
        """Nodes with keys that are refused for good."""
        return set(roll(self.folder).gone)

    def is_whole(self, experiment: Experiment) -> bool:
        """Whether a new run's clients are those of the federation, one for each node."""
        return experiment.num_clients == self.clients and not experiment.unseen_clients

    def members(self) -> frozenset[int]:
        """Returns the clients that are members now: those that have a key in the folder."""
        listed = roll(self.folder)
        return listed.members if listed.members or listed.gone else frozenset(range(self.clients))

    def is_stopping(self, run_id: int) -> bool:
        """Whether ``stop_run`` was called for a run."""
        return (self.folder / "flwr" / f"stop-{run_id}").exists()

    def known(self) -> tuple[str, str]:
        """Number of registered nodes in words, and a remedy if there are too few.

        Both are empty if it does not answer; the remedy also if none is needed.
        """
        try:
            found = Counter(member.status for member in members(self.folder, control=self.control))
        except EngramError:  # this is for a message about another error
            return "", ""
        gone = found.pop("unregistered", 0)
        here = f"on line: {found['online']}" + (f", removed: {gone}" if gone else "")
        clients = len(self.members())
        told = f"the SuperLink knows {found.total()} of the federation's {clients} nodes"
        if self.insecure or found.total() >= clients:
            return f"{told} ({here})", ""
        command = f"engram register {shlex.quote(str(self.folder))}"
        return f"{told} ({here})", f"register the others' keys: `{command}`"


def membership_of(grid: Grid) -> Membership | None:
    """Federation of the SuperLink that started this process; None without a folder.

    Raises:
        Refused: If the folder is damaged.
    """
    folder = Path(os.environ.get("FLWR_HOME", "")).parent
    path = folder / "federation.toml"
    with contextlib.suppress(OSError):
        if os.environ.get("FLWR_HOME") and path.is_file():
            settings = read_federation(path)
            return Membership(folder, settings.clients, settings.insecure, api_of(grid))
    return None
