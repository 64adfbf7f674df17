"""Trains clients whose networks differ, those of one network together."""

from collections.abc import Hashable, Sequence
from hashlib import sha256
from io import BytesIO
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from engram.client.memory import MemoryStore
from engram.cohort.trainer.chunks import Asked, Chunk, Parts
from engram.cohort.trainer.trainer import Engine, Trainer
from engram.core.checks import must
from engram.core.process_modes import drawing
from engram.core.slots import flat
from engram.core.tree import select
from engram.data.federated import FederatedData
from engram.networks.registry import maker
from engram.settings.errors import Refused, one_line

if TYPE_CHECKING:
    from engram.guards.noise import Noise
    from engram.settings.experiment import Experiment


_ALONE: Final = (
    "fedproto, local, or one with personal=* (as for votes of knn-per) where networks differ by "
    "client, for then no parameters can be shared"
)


class MixedTrainer(Trainer):
    """Trains clients, each on the network that a function of its name returns.

    Those whose modules are alike, attributes and start included, are stacked. The trainer itself
    has the first client's network. Outcomes have the clients network by network.

    For the arguments, and what is raised, see ``Trainer``. It also refuses methods that share
    parameters, or statistics whose shapes depend on the client.
    """

    def __init__(
        self,
        experiment: "Experiment",
        data: FederatedData,
        store: MemoryStore,
        *,
        engine: Engine = "vectorized",
        noise: "Noise | None" = None,
        covers: bool = False,
    ) -> None:
        self._others: dict[int, Trainer] = {}
        first, *others = _groups(experiment, data)
        own = experiment.for_client(first[0], data.names)
        super().__init__(own, data, store, engine=engine, noise=noise, covers=covers)
        self.experiment = experiment
        self._check_exchange(self, first)
        for clients in others:
            own = experiment.for_client(clients[0], data.names)
            other = Trainer(own, data, store, engine=engine, noise=noise, covers=covers)
            self._check_exchange(other, [first[0], clients[0]])
            self._others |= dict.fromkeys(clients, other)
            self.block = min(self.block, other.block)
            self.bytes_each = max(self.bytes_each, other.bytes_each)

    def _check_exchange(self, other: Trainer, clients: Sequence[int]) -> None:
        e, each = self.experiment, [trainer.shapes for trainer in (self, other)]
        one, two = (flat(own.common) | flat(own.own) | flat(own.sent) for own in each)
        if any(other.method.kinds[path.partition("/")[0]] != "statistic" for path in two):
            raise Refused(must("method", e.method, _ALONE))
        for path, leaf in one.items():
            if (wanted := tuple(leaf.shape)) != (shape := tuple(two[path].shape)):
                a, b = (self.data.names.get(client, client) for client in clients)
                why = f"{e.method} shares {path} of shape {wanted}"
                expected = f"as wide for client {b} as for client {a}, since {why}"
                raise Refused(must("representations", shape, expected))

    def parted(self, clients: Sequence[int]) -> list[tuple[Trainer, list[int]]]:
        """Returns who trains these clients, each with their positions among them."""
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


def _groups(e: "Experiment", data: FederatedData) -> list[list[int]]:
    """Returns the clients that have rows, in groups whose modules are alike.

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
        found.setdefault(_form(module), []).append(client)
    return [*found.values()]


def _form(module: nn.Module) -> Hashable:
    """Returns what is equal for modules that compute alike; of some it is the module itself."""
    file = BytesIO()
    try:
        torch.save(module, file)
    except Exception:  # of a class within a function, for one, which no pickle can name
        return module
    return sha256(file.getvalue()).digest()
