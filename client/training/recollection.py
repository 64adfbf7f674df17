"""What clients remember of a round: their rule's state, and their personal parameters."""

from collections.abc import Sequence
from typing import NamedTuple

from client.memory import OWN, MemoryStore
from client.training.cohort import LocalRound
from engram.types import LocalRule, Params

__all__ = ["Recollection"]


class Recollection(NamedTuple):
    """Looks memories up before a round, and keeps them after it.

    Attributes:
        store: Where they are kept.
        rule: The method's local rule.
        personal: Personal parameters, as a client without a memory has them.
        whole: Whether clients remember the rule's state, which is a model.
        moments: Whether they remember the optimizer's moments.
        device: The device that personal parameters are put on.
    """

    store: MemoryStore
    rule: LocalRule
    personal: Params
    whole: bool
    moments: bool
    device: str

    def recall(self, model: Params, client: int, *, before: int) -> tuple[Params | None, Params]:
        """Returns a client's rule state, None if it has none, and its personal parameters."""
        like = self._like(model)
        mine = {name: leaf.to(self.device) for name, leaf in self.personal.items()}
        if not like and not mine:
            return None, {}
        marked = {OWN + name: leaf for name, leaf in mine.items()}
        found = self.store.load(client, like | marked, before=before)
        if found is None:
            return None, mine
        state = {name: found[name] for name in like}
        return state or None, {name: found[OWN + name] for name in mine}

    def keep(
        self, done: LocalRound, clients: Sequence[int], server_round: int, durable: int
    ) -> None:
        """Stores the clients' memories after a round, but for models that became non-finite.

        Args:
            done: The round's outcome.
            clients: The clients, by position in ``done``.
            server_round: The round.
            durable: As ``MemoryStore.save``.
        """
        names = self._like(done.models.leaves)
        kept = [i for i in range(len(clients)) if i not in done.broken]
        if not kept or not (names or self.personal):
            return
        states = done.states.only(names.keys()).of(kept).stack()
        mine = done.models.only(self.personal.keys()).of(kept).stack()
        states = {name: leaf.cpu() for name, leaf in states.items()}
        states |= {OWN + name: leaf.cpu() for name, leaf in mine.items()}
        for position, i in enumerate(kept):
            memory = {name: leaf[position].clone() for name, leaf in states.items()}
            self.store.save(clients[i], memory, server_round=server_round, durable=durable)

    def shapes(self, model: Params) -> Params:
        """Returns tensors with the names and shapes of what a client keeps between rounds.

        Args:
            model: The network's parameters, with what the rule has beside them.
        """
        return self._like(model) | {OWN + name: leaf for name, leaf in self.personal.items()}

    def _like(self, model: Params) -> Params:
        """Returns tensors with the names and shapes of a client's rule state."""
        model = model | self.personal
        own = model if self.whole else {}
        return own | (self.rule.moments(model) if self.moments and self.rule.moments else {})
