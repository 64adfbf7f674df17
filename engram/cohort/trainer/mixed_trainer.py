"""Trains clients whose networks differ, those of one network together."""

import pickle
from collections.abc import Hashable, Sequence
from hashlib import sha256
from inspect import isroutine
from io import BytesIO
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from engram.client.memory import MemoryStore
from engram.cohort.trainer.chunks import Asked, Chunk, Parts
from engram.cohort.trainer.client_memory import Memory
from engram.cohort.trainer.trainer import Engine, Trainer
from engram.core.checks import must
from engram.core.method_shapes import Shapes
from engram.core.process_modes import drawing
from engram.core.slots import flat
from engram.core.tree import select
from engram.data.federated import FederatedData
from engram.networks.registry import own_network
from engram.settings.errors import Refused, one_line

if TYPE_CHECKING:
    from engram.guards.noise import Noise
    from engram.settings.experiment import Experiment


class MixedTrainer(Trainer):
    """Trains clients, each on the network that a function of its name returns.

    Clients are stacked if their modules have the same layers, attributes and start. The trainer
    itself has the first client's network, and an outcome has the clients network by network.

    For the arguments, and what is raised, see ``Trainer``. It also refuses methods that share
    parameters, or statistics whose shapes differ by client.
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
        first, *others = _groups(experiment, data)
        own = experiment.for_client(first[0], data.names)
        super().__init__(own, data, store, engine=engine, noise=noise, covers=covers)
        self.experiment = experiment
        self._others: dict[int, Trainer] = {}
        _check(experiment, [self.shapes] * 2, [])
        for clients in others:
            own = experiment.for_client(clients[0], data.names)
            other = Trainer(own, data, store, engine=engine, noise=noise, covers=covers)
            names = [data.names.get(client, client) for client in (first[0], clients[0])]
            _check(experiment, [self.shapes, other.shapes], names)
            self._others |= dict.fromkeys(clients, other)
            self.block = min(self.block, other.block)
            self.bytes_each = max(self.bytes_each, other.bytes_each)

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

    def recalled(self, clients: Sequence[int], *, before: int) -> list[Memory]:
        """Returns clients' memories from rounds before the given one."""
        found: dict[int, Memory] = {}
        for trainer, some in self.parted(clients):
            each = Trainer.recalled(trainer, [clients[i] for i in some], before=before)
            found |= zip(some, each, strict=True)
        return [found[i] for i in range(len(clients))]

    def lend(self, store: MemoryStore) -> None:
        """Keeps clients' memories in another store from now on."""
        for trainer in {self, *self._others.values()}:
            Trainer.lend(trainer, store)


def _check(e: "Experiment", shapes: Sequence[Shapes], names: Sequence[object]) -> None:
    """Refuses what two networks cannot exchange: parameters, or statistics of other shapes.

    ``names`` are a client's with each network.
    """
    each = [flat(own.common) | flat(own.own) | flat(own.sent) for own in shapes]
    kinds, (one, two) = shapes[0].method.kinds, each
    if shared := [path for path in {**one, **two} if kinds[path.split("/")[0]] != "statistic"]:
        expected = (
            "fedproto or local where networks differ by client, or have personal=* (as for votes "
            f"of knn-per), so that no parameters are shared, such as {shared[0]}"
        )
        raise Refused(must("method", e.method, expected))
    for path in one:
        wide = [tuple(leaves[path].shape) for leaves in each]
        if wide[0] != wide[1]:
            got = " and ".join(
                f"{at} of client {name}" for at, name in zip(wide, names, strict=True)
            )
            expected = f"networks with as wide a representation each, for {e.method} shares {path}"
            raise Refused(f"model {e.model} must make {expected}, got shapes {got}")


def _groups(e: "Experiment", data: FederatedData) -> list[list[int]]:
    """Returns the clients that have rows, in groups whose modules are alike.

    Raises:
        Refused: The function of the clients' names fails.
    """
    found, held = dict[Hashable, list[int]](), list[object]()
    for client in range(e.num_clients):
        if not any(len(split.rows[client]) for split in data[:2]):
            continue
        make = own_network(e.for_client(client, data.names).model)
        assert callable(make)  # for mypy: it is a function of the client's name
        try:
            with drawing(e.seed):  # so that modules with the same layers draw the same numbers
                module = make()
        except Exception as error:  # of anybody's function
            why = one_line(f"{type(error).__name__}: {error}")
            name = data.names.get(client, client)
            raise Refused(f"model {e.model} has no network for client {name}: {why}") from error
        found.setdefault(_form(module, held), []).append(client)
    return [*found.values()]


def _form(module: nn.Module, held: list[object]) -> Hashable:
    """Returns what is equal for modules that compute the same from the same start.

    What it identifies by its place in memory is added to ``held``, so that nothing else gets it.
    """
    file = BytesIO()
    try:
        _Form(file, held).dump(module)
    except Exception:  # as anybody's attribute may raise: such a network is alone
        held.append(module)
        return id(module)
    return sha256(file.getvalue()).digest()


class _Form(pickle.Pickler):
    """Pickles a module with digests of its tensors, and its functions and types by identity."""

    def __init__(self, file: BytesIO, held: list[object]) -> None:
        super().__init__(file)
        self._held, self._tensors = held, dict[int, int]()

    def persistent_id(self, x: object) -> object:
        """Returns what stands in the pickle for an object; None for the object itself."""
        if isinstance(x, Tensor):
            number = self._tensors.setdefault(id(x), len(self._tensors))  # which layers may share
            values = x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
            return number, str(x.dtype), tuple(x.shape), x.requires_grad, sha256(values).digest()
        if isinstance(x, type) or isroutine(x):  # of a notebook, too, where no pickle has them
            self._held.append(x)
            return id(x)
        return None
