"""Updates that clients send behind their guards, and slots that they receive in fewer bytes.

What guards keep of a client is in its memory, beside what the method keeps. So is, where a server
sends changes alone, what they are changes of.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, cached_property
from logging import getLogger
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from engram.cohort.round import Held, Outcome
from engram.cohort.trainer.chunks import Asked, Chunk
from engram.cohort.trainer.client_memory import Recollection
from engram.core.method import Method, Slots, Update
from engram.core.method_shapes import Shapes
from engram.core.process_modes import elsewhere
from engram.core.slots import flat, over_slots, unflat
from engram.core.streams import Stream, fresh, generator, torch_generator
from engram.core.tree import select
from engram.core.types import Params
from engram.guards.chain import parted
from engram.guards.compression.codes import CODE
from engram.guards.compression.delta_broadcast import advanced
from engram.guards.guard import Guard
from engram.guards.noise import Noise, secret_noise
from engram.guards.places import At
from engram.guards.presets import client_guards
from engram.settings.errors import EngramError, Names, few
from engram.settings.experiment import Experiment

_log = getLogger("flwr.engram")

_RECEIVED, _VERSION = "received", "version"


@dataclass(frozen=True)
class Sending:
    """Guards of updates before they leave, and slots that clients receive in code.

    Without ``noise`` that of local privacy is secret. With ``covers`` all that clients send has
    noise, and an update that diverged is sent as no change.
    """

    experiment: Experiment
    method: Method
    shapes: Shapes
    running: Set[str]
    names: Names
    memories: Recollection
    noise: Noise | None
    covers: bool

    @cached_property
    def guard(self) -> Guard:
        """The chain of guards."""
        return client_guards(self.experiment)

    @cached_property
    def _one_by_one(self) -> bool:
        """Whether guards act on one client after the other: they encode updates, or keep slots."""
        return self.guard.encodes or bool(self.guard.keeps)

    def leave(self, done: Outcome, asked: Asked, chunk: Chunk) -> tuple[Outcome, list[Params]]:
        """Returns the updates that are sent, and arrays to keep beside the method's slots.

        In one process clients send the slots that their bytes stand for.
        """
        (_, clients, own), guard, number = chunk, self.guard, asked.server_round
        if not guard.acts("leave"):
            return done, []
        if done.broken and self.covers:
            who = few([clients[i] for i in done.broken], self.names)
            told = "clients %s send noise alone in round %d: their training diverged"
            _log.warning(told, who, number)
        done = done._replace(broken={}) if self.covers else done
        if self._one_by_one:
            return self._in_turn(done, asked, chunk)

        each = [self._at(asked.common, number, client) for client in clients]

        def normal(size: int, stream: Stream) -> Tensor:
            return torch.stack([at.normal(size, stream) for at in each])

        def uniform(size: int, stream: Stream) -> Tensor:  # vmap lets torch draw elsewhere alone
            return elsewhere(lambda: torch.stack([at.uniform(size, stream) for at in each]))

        everyone = each[0]._replace(normal=normal, uniform=uniform)
        left = leave_together(guard, everyone, own, done.sent.stack())
        return done._replace(sent=Held(left)), []

    def _in_turn(self, done: Outcome, asked: Asked, chunk: Chunk) -> tuple[Outcome, list[Params]]:
        guard, number, left, beside = self.guard, asked.server_round, list[Slots](), list[Params]()
        all_slots = asked.common, chunk.own, done.sent.stack()
        common, own, sent = (over_slots(Tensor.cpu, slots) for slots in all_slots)
        if done.broken:  # of whom nothing is sent, or kept
            broken = torch.tensor([*done.broken])
            sent = over_slots(lambda leaf: leaf.index_fill(0, broken, 0), sent)
        for i, client in enumerate(chunk.clients):
            at = self._at(common | select(own, i), number, client)
            before = unflat(self.memories.beside(client, before=number))
            mine = over_slots(lambda leaf, i=i: leaf[i], sent)
            update, kept = guard.leave(at, Update(mine, 0), before)
            if asked.version is None:
                (update,), _ = parted([guard.arrive(at, update)])
            elif guard.broadcast and not guard.broadcast.whole:
                kept |= {_RECEIVED: common, _VERSION: torch.tensor(asked.version)}
            left.append(update.slots)
            beside.append(flat(kept))
        device = next((x.device for x in flat(asked.common).values()), torch.device("cpu"))
        slots = over_slots(lambda *leaves: torch.stack(leaves).to(device), *left)
        return done._replace(sent=Held(slots)), beside

    def _at(self, received: Slots, number: int, client: int) -> At:
        e, noise = self.experiment, self.noise or secret_noise
        source = cache(lambda stream: torch_generator(e.seed, stream, number, client))
        return At(
            self.method,
            self.running,
            e.clients_per_round,
            received,
            lambda _: received,
            fresh(noise, number, client),
            lambda stream: generator(e.seed, stream, number),
            uniform=lambda size, stream: torch.rand(size, generator=source(stream)),
            like=self.shapes.sent,
        )

    def received(
        self, arrays: Params, version: int, clients: Sequence[int], *, server_round: int
    ) -> Params:
        """Returns the slots, by path, that a message brings to clients before a round.

        One of the clients may hold the slots that the changes in ``arrays`` are of.

        Raises:
            EngramError: The bytes are not those of such slots, or nobody holds what they change.
        """
        cast, common = self.guard.broadcast, self.shapes.common
        if cast is None or arrays.keys() != {CODE}:
            return arrays
        layout, code = cast.layout(self.method, common, self.running), arrays[CODE]
        try:
            if cast.whole:
                found = layout.decode(code)
            else:
                each = (unflat(self.memories.beside(c, before=server_round)) for c in clients)
                found = _base(version - len(code), each)
                for change in code:
                    found = advanced(layout, found, layout.decode(change))
        except (ValueError, RuntimeError) as error:
            raise EngramError(f"a message must hold bytes of slots: {error}") from error
        return {path: found[path] for path in flat(common)}  # whose order sums over slots follow


def leave_together(guard: Guard, at: At, own: Slots, sent: Slots) -> Slots:
    """Returns clients' updates as guards let them leave that keep nothing of a client.

    Each depends on its client alone, so that a client's privacy does not depend on who else trains
    or on how nodes host clients. A client that is asked again answers with new noise, at the same
    privacy cost; a run reports the cost of what it asked for itself.

    Args:
        guard: The guards.
        at: Where they act: ``server`` has the slots that all of the clients received alike, and
            ``normal`` and ``uniform`` give the numbers of all clients, (c, size).
        own: Their own slots that they received, with a leading client axis.
        sent: The slots that they send, with a leading client axis.
    """
    if not (paths := flat(sent)):
        return sent

    def leave(client: Tensor, own: Slots, sent: Slots) -> Slots:
        def mine(draw: Callable[[int, Stream], Tensor]) -> Callable[[int, Stream], Tensor]:
            return lambda size, stream: draw(size, stream).index_select(0, client.reshape(1))[0]

        received, normal, uniform = at.server | own, mine(at.normal), mine(at.uniform)
        here = at._replace(received=lambda _: received, normal=normal, uniform=uniform)
        return guard.leave(here, Update(sent, 0), {})[0].slots

    found: Slots = vmap(leave)(torch.arange(len(next(iter(paths.values())))), own, sent)
    return found


def _base(version: int, memories: Iterable[Mapping[str, Any]]) -> Params:
    for memory in memories:
        if _VERSION in memory and int(memory[_VERSION]) == version:
            return flat(memory[_RECEIVED])
    raise EngramError(
        f"changes must be of slots that a client here received, and none has version {version}:"
        " the server sends all of them next time"
    )
