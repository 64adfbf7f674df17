"""Members of a federation, by its folder, for the coordinator of a run."""

import re
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from engram.link.server.registration import Clients, roll
from engram.settings.experiment import Experiment


class Membership(NamedTuple):
    """A federation, as seen by its coordinator."""

    folder: Path  # the server's folder
    clients: int  # how many clients the federation had when the coordinator began

    def number(self, name: str) -> int | None:
        """Returns the number of the client that a node is called by; None if it is none."""
        match = re.fullmatch(r"client-(\d{1,9})", name)
        return int(match[1]) if match else None

    def is_named(self, name: str, client: int) -> bool:
        """Whether a node is registered as the host of this client.

        A run may have more clients than the federation's M: a node then hosts every M-th client,
        from its own number. One that was added since hosts the client of its number.
        """
        number = self.number(name)
        added = number is not None and number >= self.clients
        return number == (client if added else client % self.clients)

    def barred(self) -> set[int]:
        """Numbers of the nodes of clients that were removed, or have left."""
        return {node_number(client) for client in _roll(self.folder).gone}

    def is_whole(self, experiment: Experiment) -> bool:
        """Whether a new run's clients are those of the federation, one for each node."""
        return experiment.num_clients == self.clients and not experiment.unseen_clients

    def members(self) -> frozenset[int]:
        """Returns the clients that are members now: those that have a key in the folder."""
        listed = _roll(self.folder)
        return listed.members if listed.keys else frozenset(range(self.clients))

    def is_stopping(self, run_id: int) -> bool:
        """Whether ``stop_run`` was called for a run."""
        return (self.folder / f"stop-{run_id}").exists()

    def known(self, on_line: Collection[int]) -> str:
        """Returns the number of the members' nodes that are on line, in words."""
        members, gone = self.members(), len(_roll(self.folder).gone)
        there = members & {client_number(node) for node in on_line}
        ended = f", {gone} removed or left" if gone else ""
        return f"{len(there)} of the federation's {len(members)} nodes are on line{ended}"


def _roll(folder: Path) -> Clients:
    """Returns the roll as it is now; its files are read again only where one has changed."""
    states = ((path.name, path.lstat()) for path in (folder / "clients").glob("*"))
    return _read(folder, frozenset((n, s.st_mtime_ns, s.st_ino, s.st_size) for n, s in states))


@lru_cache(maxsize=1)
def _read(folder: Path, seen: frozenset[tuple[str, int, int, int]]) -> Clients:
    del seen
    return roll(folder)


def node_number(client: int) -> int:
    """Number of a client's node on the link; Flower has no node 0."""
    return client + 1


def client_number(node: int) -> int:
    """Number of the client that a node of the link is of."""
    return node - 1
