"""Clipping, noise and robust means of updates, over their slots, for every method.

Running statistics are left as they are: noise might make a variance negative.
"""

from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

import torch
from torch import Tensor

from engram.core.checks import require
from engram.core.method import Method, Slots, Update
from engram.core.slots import flat, mean_of, over_slots, pick, unflat, zeros
from engram.core.tree import norm
from engram.guards.gaussian import add_normal, clip
from engram.guards.robust import Center


def changes(method: Method, received: Slots, sent: Slots) -> Slots:
    """Returns an update's changes: models minus the received ones, and other slots as they are."""
    return over_slots(torch.sub, sent, origin_of(method, received, sent))


def origin_of(method: Method, received: Slots, sent: Slots) -> Slots:
    """Returns each sent slot's reference: the received model, or zeros."""
    found: Slots = {}
    for slot, x in sent.items():
        if method.kinds[slot] == "model":
            found[slot] = {name: received[slot][name] for name in x}
        else:
            found[slot] = torch.zeros_like(x) if isinstance(x, Tensor) else zeros(x)
    return found


class Walker(NamedTuple):
    """Clipping, noise and robust means of a method's updates.

    Attributes:
        method: The method.
        running: Names of running statistics, which are neither clipped nor noised.
    """

    method: Method
    running: Set[str] = frozenset()

    def clip(self, received: Slots, sent: Slots, bound: float) -> Slots:
        """Scales an update's changes down to Euclidean norm ``bound``, taken over all slots."""
        moved, rest = self.apart(sent)
        if not flat(moved):
            return sent
        near = clip(flat(moved), flat(origin_of(self.method, received, moved)), bound)
        return self.joined(unflat(near), rest, sent)

    def length(self, received: Slots, sent: Slots) -> float:
        """Returns the Euclidean norm of an update's changes, over all slots, as ``clip`` has it."""
        moved = flat(changes(self.method, received, self.apart(sent)[0]))
        return float(norm({name: leaf.double() for name, leaf in moved.items()})) if moved else 0.0

    def rebase(self, then: Slots, now: Slots, sent: Slots, weight: float) -> Slots:
        """Makes changes of older slots changes of newer ones: now + weight (sent - then).

        So does every model and every difference; other statistics are left as they are.
        """
        moved, rest = self.apart(sent)
        moved = {slot: x for slot, x in moved.items() if self.method.kinds[slot] != "statistic"}
        old, new = (origin_of(self.method, received, moved) for received in (then, now))
        near = over_slots(lambda x, a, b: torch.add(b, x - a, alpha=weight), moved, old, new)
        return self.joined(sent | near, rest, sent)

    def add_noise(self, sent: Slots, deviation: float, normal: Tensor) -> Slots:
        """Adds noise to an update.

        Args:
            sent: The update.
            deviation: Standard deviation of the noise.
            normal: Standard normal numbers, (``size(sent)``,), assigned in the order of names.
        """
        moved, rest = self.apart(sent)
        return self.joined(unflat(add_normal(flat(moved), deviation, normal)), rest, sent)

    def size(self, sent: Slots) -> int:
        """Returns the number of an update's numbers that are clipped and noised."""
        return sum(leaf.numel() for leaf in flat(self.apart(sent)[0]).values())

    def center(self, updates: Sequence[Update], center: Center, statistics: Center) -> Update:
        """Returns a robust center of updates, with the same weight for all clients."""
        parts = [self.apart(update.slots) for update in updates]
        moved, rest = [flat(moved) for moved, _ in parts], [flat(rest) for _, rest in parts]
        middle = unflat(center(moved)) if moved[0] else {}  # a method may send nothing
        averages = unflat(statistics(rest)) if rest[0] else {}
        slots = self.joined(middle, averages, updates[0].slots)
        return Update(slots, sum(u.rows for u in updates), len(updates))

    def private_mean(
        self,
        server: Slots,
        updates: Sequence[Update],
        *,
        bound: float,
        multiplier: float,
        clients: int,
        normal: Callable[[int], Tensor],
    ) -> Update:
        """Returns a noisy mean of clipped updates (McMahan et al. ICLR 2018, Alg. 1).

            origin + (1 / n) (sum_i clip(u_i - origin) + z C xi),    xi ~ N(0, I)

        Every client has the same weight, and n is the number of clients that were *asked*: a client
        whose reply is missing counts as one that changed nothing. So adding or removing a client
        moves the sum by at most C, whoever else replies: the Gaussian mechanism with multiplier z.

        Args:
            server: The server's slots; the models that it sends are the origin.
            updates: The updates, each of one or several clients; of no client for the form alone.
            bound: The norm C; > 0.
            multiplier: The noise multiplier z; > 0.
            clients: n; >= 1.
            normal: ``size -> (size,)``, standard normal numbers.

        Raises:
            ValueError: If a value is out of range.
        """
        require(bound > 0, "clip", bound, "positive")
        require(multiplier > 0, "noise-multiplier", multiplier, "positive")
        received, _ = self.method.server.send(server, [])
        parts = [self.apart(update.slots) for update in updates]
        origin = origin_of(self.method, received, parts[0][0])
        total = over_slots(torch.zeros_like, origin)
        for update, (moved, _) in zip(updates, parts, strict=True):
            near = self.clip(received, moved, bound)
            away, share = over_slots(torch.sub, near, origin), update.clients / clients
            total = over_slots(lambda x, y, share=share: torch.add(x, y, alpha=share), total, away)
        mean = over_slots(torch.add, origin, total)
        noisy = self.add_noise(mean, multiplier * bound / clients, normal(self.size(mean)))
        plain = [u._replace(slots=rest) for u, (_, rest) in zip(updates, parts, strict=True)]
        answered = any(update.clients for update in updates)
        averages = mean_of(plain, "clients").slots if answered else plain[0].slots
        slots = self.joined(noisy, averages, updates[0].slots)
        return Update(slots, float(clients), float(clients))

    def apart(self, slots: Slots) -> tuple[Slots, Slots]:
        """Returns slots without running statistics, and the running statistics of models."""
        moved, rest = dict(slots), Slots()
        for slot, x in slots.items():
            if self.running and self.method.kinds[slot] == "model":
                rest[slot] = pick(x, self.running)
                moved[slot] = {n: leaf for n, leaf in x.items() if n not in self.running}
        return moved, rest

    @staticmethod
    def joined(moved: Slots, rest: Slots, like: Slots) -> Slots:
        """Undoes ``apart``, with the names and order of ``like``."""
        found: Slots = {}
        for slot, x in like.items():
            if isinstance(x, Tensor):
                found[slot] = moved[slot]
            else:
                whole = moved.get(slot, {}) | rest.get(slot, {})
                found[slot] = {name: whole[name] for name in x}
        return found
