"""The outcome of a round of local training for a group of clients."""

from collections.abc import Mapping, Sequence

import torch

from engram.cohort.round import ClientRaised, Outcome
from engram.core.method import Slots
from engram.core.slots import over_slots
from federation.errors import EngramError
from federation.names import Names
from federation.trained import Trained

__all__ = ["ClientFailed", "Group", "failed"]


class ClientFailed(EngramError):
    """An error in a client's training; the message names client, round and step."""


def failed(
    clients: Sequence[int], error: ClientRaised, server_round: int, names: Names
) -> ClientFailed:
    """Returns the error with the client's name in its message."""
    client = clients[error.position]
    called = names.get(client, client)
    return ClientFailed(
        f"client {called} failed in round {server_round} at step {error.step}: {error.__cause__!r}"
    )


class Group:
    """Collects the outcome for a group of clients, block by block.

    Args:
        combine: The largest weight of a client, in rows, in the mean of what clients send; None to
            collect what every client sends.
        names: The clients' names.
        device: The device that they were trained on.
    """

    def __init__(self, combine: int | None, names: Names, device: str = "cpu") -> None:
        self._combine = combine
        self._names = names
        self._device = device
        self._clients: list[int] = []
        self._examples: list[int] = []
        self._losses: list[float] = []
        self._failures: dict[int, str] = {}
        self._sent: list[Slots] = []  # of each block; or only the mean of all
        self._weight = 0

    def add(
        self,
        positions: list[int],
        done: Outcome,
        clients: Sequence[int],
        examples: Sequence[int],
        server_round: int,
        causes: Mapping[int, str],
    ) -> None:
        """Adds clients of a block, by position; ``causes`` are those of the broken ones."""
        for i in positions:
            if i in done.broken:
                cause = f"; {causes[i]}" if i in causes else ""
                step = f" at step {done.broken[i]}" if done.broken[i] else ""
                called = self._names.get(clients[i], clients[i])
                self._failures[clients[i]] = (
                    f"client {called}: its model or loss became non-finite in round "
                    f"{server_round}{step}{cause}"
                )
        kept = [i for i in positions if i not in done.broken]
        if not kept:
            return
        self._clients += [clients[i] for i in kept]
        self._examples += [examples[i] for i in kept]
        self._losses += [done.losses[i] for i in kept] if done.losses else []
        sent = done.sent if len(kept) == len(clients) else done.sent.of(kept)
        if self._combine is None:
            self._sent.append(sent.stack())
            return
        weights = torch.tensor([min(examples[i], self._combine) for i in kept])
        total = int(weights.sum())
        self._weight += total
        mean = sent.mean((weights / total).float().to(self._device))
        before = self._sent or [mean]
        share = total / self._weight
        self._sent = [over_slots(lambda x, y: torch.lerp(x, y, share), before[0], mean)]

    def trained(self, way: str) -> Trained:
        """Returns the outcome for the whole group."""
        slots = self._sent[0] if len(self._sent) == 1 else {}
        if len(self._sent) > 1:
            slots = over_slots(lambda *leaves: torch.cat(leaves), *self._sent)
        return Trained(self._clients, slots, self._examples, self._losses, self._failures, way)
