"""Training of clients with networks of their own, those of one network together."""

from collections.abc import Hashable, Sequence
from contextlib import suppress
from hashlib import sha256
from io import BytesIO

import torch

from engram.client.memory import MemoryStore
from engram.cohort.trainer.chunks import Asked, Chunk, Parts
from engram.cohort.trainer.trainer import Engine, Trainer
from engram.core.checks import must
from engram.core.process_modes import drawing
from engram.core.slots import flat
from engram.core.tree import select
from engram.data.federated import FederatedData
from engram.guards.noise import Noise
from engram.networks.registry import maker
from engram.settings.errors import Refused, one_line
from engram.settings.experiment import Experiment
from engram.settings.families import METHODS


class MixedTrainer(Trainer):
    """Trains clients, each on the network that a function of its name returns.

    Those whose modules are alike, attributes and start included, are stacked. The trainer itself
    has the first client's network. Outcomes have the clients network by network. See ``Trainer``.

    Raises:
        Refused: Also if the method shares parameters, or statistics of several shapes.
    """

    def __init__(
        self,
        experiment: Experiment,
        data: FederatedData,
        store: MemoryStore,
        *,
        engine: Engine = "vectorized",
        noise: Noise | None = None,
        covers: bool = False,
    ) -> None:
        self._others: dict[int, Trainer] = {}
        first, *others = _groups(experiment, data)
        one = experiment.for_client(first[0], data.names)
        super().__init__(one, data, store, engine=engine, noise=noise, covers=covers)
        self.experiment = experiment
        self._check_exchange(self, first)
        for clients in others:
            one = experiment.for_client(clients[0], data.names)
            other = Trainer(one, data, store, engine=engine, noise=noise, covers=covers)
            self._check_exchange(other, [first[0], clients[0]])
            self._others |= dict.fromkeys(clients, other)
            self.block = min(self.block, other.block)
            self.bytes_each = max(self.bytes_each, other.bytes_each)

    def _check_exchange(self, other: Trainer, clients: Sequence[int]) -> None:
        e, each = self.experiment, [trainer.shapes for trainer in (self, other)]
        one, two = (flat(own.common) | flat(own.own) | flat(own.sent) for own in each)
        if any(other.method.kinds[path.partition("/")[0]] != "statistic" for path in two):
            alone = [name for name in METHODS if getattr(METHODS[name], "personal", "") == "all"]
            expected = f"local, {', '.join(alone)}, or any with personal=*, where networks differ"
            raise Refused(must("method", e.method, f"{expected} by client: none shares parameters"))
        for path, leaf in one.items():
            if (shape := two[path].shape) != leaf.shape:
                a, b = (self.data.names.get(client, client) for client in clients)
                wide = f"as wide for client {b} as for {a}, to share {path} of {tuple(leaf.shape)}"
                raise Refused(must("representations", tuple(shape), wide))

    def parted(self, clients: Sequence[int]) -> list[tuple[Trainer, list[int]]]:
        """Groups clients by their trainers; returns each trainer with positions in ``clients``."""
        found: dict[Trainer, list[int]] = {}
        for i, client in enumerate(clients):
            found.setdefault(self._others.get(client, self), []).append(i)
        return [*found.items()]

    def chunk(self, asked: Asked, chunk: Chunk) -> Parts:
        """Trains a chunk of a round's clients, network by network; or scores them."""
        parts: Parts = []
        for trainer, some in self.parted(chunk.clients):
            numbers, clients = ([each[i] for i in some] for each in chunk[:2])
            parts += Trainer.chunk(trainer, asked, Chunk(numbers, clients, select(chunk.own, some)))
        return parts

    def lend(self, store: MemoryStore) -> None:
        """Keeps clients' memories in another store from now on."""
        for trainer in {self, *self._others.values()}:
            Trainer.lend(trainer, store)


def _groups(e: Experiment, data: FederatedData) -> list[list[int]]:
    """Groups the clients that have rows by their modules.

    Raises:
        Refused: The function of the clients' names fails.
    """
    found: dict[Hashable, list[int]] = {}
    for client in range(e.num_clients):
        if not any(len(split.rows[client]) for split in data[:2]):
            continue
        make = maker(e.for_client(client, data.names).model)
        assert callable(make)  # for mypy: it is a function of the client's name
        try:
            with drawing(e.seed):  # so that modules with the same layers draw the same numbers
                module = make()
        except Exception as error:  # of anybody's function
            why = one_line(f"{type(error).__name__}: {error}")
            who = data.names.get(client, client)
            raise Refused(f"model {e.model} returns no network for client {who}: {why}") from error
        form: Hashable = (file := BytesIO())
        with suppress(Exception):  # as of a class within a function: the module trains alone
            torch.save(module, file)
            form = sha256(file.getvalue()).digest()
        found.setdefault(form, []).append(client)
    return [*found.values()]
