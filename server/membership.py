"""Nodes of a federation, by its folder, for a run that its SuperLink has started."""

import contextlib
import os
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from flwr.serverapp import Grid

from federation.credentials import read_federation
from federation.errors import EngramError
from federation.flower import api_of
from server.registration import unregistered
from server.status import members


class Membership(NamedTuple):
    """A federation, as seen by its coordinator."""

    folder: Path  # the coordinator's folder
    clients: int  # how many clients the federation has
    insecure: bool = False  # whether it admits any node, without names
    control: str | None = None  # HOST:PORT of its SuperLink's Control API

    def number(self, name: str) -> int | None:
        """Returns the number of the client that a node is registered as; None if it is not."""
        match = re.fullmatch(r"client-(\d{1,9})", name)
        return int(match[1]) if match and not self.insecure else None

    def is_named(self, name: str, client: int) -> bool:
        """Whether a node is registered as the host of this client.

        A run may have more clients than the federation's M: a node then hosts every M-th client,
        from its own number.
        """
        return client % self.clients == self.number(name)

    def barred(self) -> set[int]:
        """Returns the nodes whose keys were removed by `engram unregister`."""
        return set(unregistered(self.folder))

    def known(self) -> tuple[str, str]:
        """Returns how many of the federation's nodes the SuperLink knows, and a remedy if too few.

        Both are empty if it does not answer; the remedy also if none is needed.
        """
        try:
            found = Counter(member.status for member in members(self.folder, control=self.control))
        except EngramError:  # this is for a message about another error
            return "", ""
        gone = found.pop("unregistered", 0)
        here = f"on line: {found['online']}" + (f", unregistered: {gone}" if gone else "")
        told = f"the SuperLink knows {found.total()} of the federation's {self.clients} nodes"
        if self.insecure or found.total() >= self.clients:
            return f"{told} ({here})", ""
        command = f"engram register {shlex.quote(str(self.folder))}"
        return f"{told} ({here})", f"register the others' keys: `{command}`"


def membership_of(grid: Grid) -> Membership | None:
    """Returns the federation whose SuperLink started this process; None if it has no folder.

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
