"""The outcome of a local round, which a node sends or a run in one process reads as it is."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from engram.core.method import Slots
from engram.core.slots import over_slots

_TOLD: Final = 2  # most clients whose failures are told


class Trained(NamedTuple):
    """The outcome of a local round for a group of clients."""

    clients: list[int]  # the clients that trained, in the order in which they were asked for
    # The weighted mean of the slots that they send; or, if no mean was asked for, these slots, each
    # array with a leading axis of ``len(clients)``. Empty if no client trained.
    slots: Slots
    examples: list[int]  # their numbers of training rows
    # Their losses on the last local batch, after the last step; empty if losses were not asked for.
    losses: list[float]
    # Likely causes, by client, of models or losses that became non-finite. These clients are left
    # out of all the above, and their memories have not changed.
    failures: dict[int, str]
    way: str  # the way in which they were trained: see ``engram.wire.wire.WAYS``

    @property
    def reason(self) -> str:
        """Why clients failed, of the first of them."""
        return "; ".join([*self.failures.values()][:_TOLD])

    def apart(self) -> "Iterator[Trained]":
        """Yields each client's outcome, if no mean was asked for."""
        for i, client in enumerate(self.clients):
            mine = over_slots(lambda leaf, i=i: leaf[i : i + 1], self.slots)
            losses = self.losses[i : i + 1]
            yield Trained([client], mine, self.examples[i : i + 1], losses, {}, self.way)
        for client, reason in self.failures.items():
            yield Trained([], {}, [], [], {client: reason}, self.way)
