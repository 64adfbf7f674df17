"""The outcome of a round of local training for a group of clients."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from client.training.cohort import LocalRound
from engram.cohort.task import ClientRaised
from engram.tree import interpolate
from engram.types import Params
from federation.errors import EngramError
from federation.names import Names

__all__ = ["ClientFailed", "Group", "Trained", "failed"]


class ClientFailed(EngramError):
    """A client's local round raised an error; the message names client, round and step."""


def failed(
    clients: Sequence[int], error: ClientRaised, server_round: int, names: Names
) -> ClientFailed:
    """Returns the error, with the name of the client whose step raised it."""
    client = clients[error.position]
    called = names.get(client, client)
    return ClientFailed(
        f"client {called} failed in round {server_round} at step {error.step}: {error.__cause__!r}"
    )


class Trained(NamedTuple):
    """The outcome of a local round for a group of clients.

    Attributes:
        clients: The clients that trained, in the order in which they were asked for.
        params: The weighted mean of their models; or, if no mean was asked for, their models,
            each leaf with a leading axis of ``len(clients)``. Empty if no client trained.
        examples: Their numbers of training rows.
        losses: Their losses on the last local batch, after the last step, in nats; empty if they
            are not wanted.
        failures: By client, what happened to those whose model or loss became non-finite. They
            are left out of all the above, and their memories have not changed.
        way: How they were trained: see ``federation.wire.WAYS``.
    """

    clients: list[int]
    params: Params
    examples: list[int]
    losses: list[float]
    failures: dict[int, str]
    way: str


class Group:
    """Collects the outcome for a group of clients, block by block.

    Args:
        combine: The largest weight of a client, in rows, in the mean of the models; None to collect
            every client's model.
        names: The clients' names.
    """

    def __init__(self, combine: int | None, names: Names) -> None:
        self._combine = combine
        self._names = names
        self._clients: list[int] = []
        self._examples: list[int] = []
        self._losses: list[float] = []
        self._failures: dict[int, str] = {}
        self._models: list[Params] = []  # each block's models, or only the mean of all
        self._weight = 0

    def add(
        self,
        positions: list[int],
        done: LocalRound,
        clients: Sequence[int],
        examples: Sequence[int],
        server_round: int,
        causes: Mapping[int, str],
    ) -> None:
        """Adds clients of a block, given by position; ``causes`` say why some of them broke."""
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
        models = done.models.of(kept)
        if self._combine is None:
            self._models.append(models.stack())
            return
        weights = torch.tensor([min(examples[i], self._combine) for i in kept])
        total = int(weights.sum())
        self._weight += total
        leaf = next(iter(models.leaves.values()))
        mean = models.mean((weights / total).to(leaf))
        before = self._models or [mean]
        self._models = [interpolate(before[0], mean, total / self._weight)]

    def trained(self, way: str) -> Trained:
        """Returns the outcome for the whole group."""
        params = self._models[0] if len(self._models) == 1 else {}
        if len(self._models) > 1:
            params = {k: torch.cat([part[k] for part in self._models]) for k in self._models[0]}
        return Trained(self._clients, params, self._examples, self._losses, self._failures, way)
