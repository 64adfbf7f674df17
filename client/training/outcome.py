"""The outcome of a round of local training for a group of clients."""

from collections.abc import Mapping, Sequence

import torch

from engram.cohort.round import ClientRaised, Outcome
from engram.core.method import Slots
from engram.core.slots import over_slots
from federation.data.federated import FederatedData
from federation.errors import EngramError, Names
from federation.trained import Trained


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
        data: The clients' data.
        device: The device that they were trained on.
    """

    def __init__(self, combine: int | None, data: FederatedData, device: str) -> None:
        self._combine = combine
        self._names, self._rows = data.names, data.train.rows
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
        server_round: int,
        causes: Mapping[int, str],
    ) -> None:
        """Adds clients of a block, by position; ``causes`` are those of the broken ones."""
        kept = []
        for i in positions:
            client = clients[i]
            if i in done.broken:
                cause = f"; {causes[i]}" if i in causes else ""
                step = f" at step {done.broken[i]}" if done.broken[i] else ""
                self._failures[client] = (
                    f"client {self._names.get(client, client)}: its model or loss became "
                    f"non-finite in round {server_round}{step}{cause}"
                )
                continue
            kept.append(i)
            self._clients.append(client)
            self._examples.append(len(self._rows[client]))
            self._losses += done.losses[i : i + 1]
        if not kept:
            return
        sent = done.sent if len(kept) == len(clients) else done.sent.of(kept)
        if self._combine is None:
            self._sent.append(sent.stack())
            return
        weights = torch.tensor(self._examples[-len(kept) :]).clamp(max=self._combine)
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
