"""Memories of clients that travel with a chunk, and return with its outcome."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from engram.cohort.trainer.chunks import Asked
from engram.core.types import Params

if TYPE_CHECKING:
    from engram.cohort.trainer.trainer import Trainer

Loan = dict[int, tuple[int, Params]]
"""By client, the round that made its memory, and the memory."""


class Lent:
    """Memories of a chunk's clients: those that they come with, and those that training makes."""

    def __init__(self) -> None:
        self.lent: Mapping[int, tuple[int, Params]] = {}
        self.made: dict[int, Params] = {}

    def load(self, client: int, *, before: int) -> Params | None:
        """As ``MemoryStore.load``."""
        del before
        return self.lent[client][1] if client in self.lent else None

    def newest(self, client: int, *, before: int) -> int:
        """As ``MemoryStore.newest``."""
        del before
        return self.lent[client][0] if client in self.lent else 0

    def save(self, client: int, memory: Params, *, server_round: int, durable: int) -> None:
        """As ``MemoryStore.save``."""
        del server_round, durable
        self.made[client] = memory


def lent(trainer: "Trainer", clients: Sequence[int], server_round: int) -> Loan:
    """Returns the memories of those clients that have one."""
    store = trainer.store
    found = {c: store.load(c, before=server_round) for c in clients}
    return {
        client: (store.newest(client, before=server_round), memory)
        for client, memory in found.items()
        if memory is not None
    }


def returned(trainer: "Trainer", asked: Asked, made: Mapping[int, Params]) -> None:
    """Stores the memories that a round has made elsewhere."""
    for client, memory in made.items():
        when = {"server_round": asked.server_round, "durable": asked.durable}
        trainer.store.save(client, memory, **when)
