"""Clients' memories: slots and optimizer's states that they keep from round to round."""

from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from engram.client.memory import MemoryMismatch, MemoryStore
from engram.cohort.round import Outcome
from engram.core.contract import difference
from engram.core.method import Method, Slots
from engram.core.slot_optimizers import State
from engram.core.slots import flat, over_slots, unflat
from engram.core.tree import select
from engram.core.types import Params

if TYPE_CHECKING:
    from engram.cohort.trainer.chunks import Asked
    from engram.cohort.trainer.trainer import Trainer

_KEPT, _OPTIMIZER, _BESIDE = "kept", "optimizer", "beside/"


class Memory(NamedTuple):
    """A client's memory."""

    kept: Slots  # the method's slots
    states: Sequence[State]  # the optimizer's states by slot, for each phase; empty for new states
    trained: bool  # whether the client has trained
    # Names and shapes of all arrays; clients are trained together if theirs are equal.
    form: Hashable


@dataclass(frozen=True)
class Recollection:
    """Loads clients' memories before a round, and stores them after it.

    Arrays are in the order of their names, whether a memory comes from the store or from the last
    round, since clients are trained together only if their arrays have the same order.
    """

    store: MemoryStore
    method: Method
    initial: Params  # the network's parameters before training
    moments: bool  # whether clients keep the optimizer's states
    device: str  # the device that slots are put on
    unseen: Set[int]  # clients that never train

    def recall(self, client: int, *, before: int) -> Memory:
        """Returns a client's memory from rounds before the given one.

        Raises:
            MemoryMismatch: The memory is that of another method or another network.
        """
        found = self.store.load(client, before=before)
        if found is None:
            return self._begun._replace(trained=self._begun.trained and client not in self.unseen)
        mine = {n: leaf for n, leaf in sorted(found.items()) if not n.startswith(_BESIDE)}
        arrays: Params = over_slots(methodcaller("to", self.device), mine)
        tree, form = unflat(arrays), _form(arrays)
        kept = unflat({}, self.method.client.start) | tree.get(_KEPT, {})
        if form not in self._checked:
            self._check(client, tree.keys(), kept)
            self._checked.add(form)
        by_phase = tree.get(_OPTIMIZER, {}) if self.moments else {}
        phases = range(len(self.method.client.phases)) if by_phase else ()
        return Memory(kept, [by_phase.get(str(at), {}) for at in phases], True, form)

    def beside(self, client: int, *, before: int) -> Params:
        """Returns the arrays that a client keeps beside the method's slots, by path."""
        found = self.store.load(client, before=before) or {}
        return {
            path.removeprefix(_BESIDE): leaf
            for path, leaf in found.items()
            if path.startswith(_BESIDE)
        }

    @cached_property
    def _begun(self) -> Memory:
        start = self.method.client.start
        arrays: Params = over_slots(
            methodcaller("to", self.device), dict(sorted(flat(start).items()))
        )
        form = _form({f"{_KEPT}/{path}": leaf for path, leaf in arrays.items()})
        return Memory(unflat(arrays, start), [], not start, form)

    @cached_property
    def _checked(self) -> set[Hashable]:
        return set()

    def _check(self, client: int, tops: Set[str], kept: Slots) -> None:
        start = self.method.client.start
        if not tops <= {_KEPT, _OPTIMIZER} or not start.keys() <= kept.keys():
            raise MemoryMismatch(
                f"the memory of client {client} belongs to another method, or an earlier version "
                "of Engram: remove it, or take the version that wrote it"
            )
        whose = f"the memory of client {client} belongs to another"
        for slot, x in kept.items():
            kind, begun = self.method.kinds.get(slot), start.get(slot)
            if kind is None:
                raise MemoryMismatch(f"{whose} method: it has a slot {slot!r}")
            like = self.initial if begun is None else begun
            exact = kind != "statistic" or begun is not None
            if exact and (found := difference(x, like, whole=begun is not None)):
                raise MemoryMismatch(f"{whose} model: its {slot!r} has {found}")

    def keep(
        self,
        done: Outcome,
        clients: Sequence[int],
        server_round: int,
        durable: int,
        beside: Sequence[Params] = (),
    ) -> None:
        """Stores the memories of clients after a round, but for those that became non-finite."""
        fine = [i for i in range(len(clients)) if i not in done.broken]
        kept = done.kept.of(fine) if done.broken else done.kept
        tree: dict[str, Any] = {_KEPT: kept.stack()} if fine else {}
        if self.moments and fine:
            tree[_OPTIMIZER] = {
                str(at): select(state, fine) for at, state in enumerate(done.states)
            }
        arrays = over_slots(Tensor.cpu, flat(tree))
        for row, i in enumerate(fine if arrays or beside else []):
            memory = {path: leaf[row].clone() for path, leaf in arrays.items()}
            if beside:
                memory |= {_BESIDE + path: leaf for path, leaf in beside[i].items()}
            self.store.save(clients[i], memory, server_round=server_round, durable=durable)


# --- Loans to other processes --------------------------------------------------------------------

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


def returned(trainer: "Trainer", asked: "Asked", made: Mapping[int, Params]) -> None:
    """Stores the memories that a round has made elsewhere."""
    for client, memory in made.items():
        number, durable = asked.server_round, asked.durable
        trainer.store.save(client, memory, server_round=number, durable=durable)


def _form(arrays: Params) -> Hashable:
    return tuple((path, leaf.shape) for path, leaf in arrays.items())
