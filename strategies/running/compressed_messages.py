"""Bytes of a round's messages where these are compressed, and who holds which version of the slots.

Every client counts as a machine of its own, as nodes with one client are: one that was asked in the
round before receives one change, one that was away all that it has missed, and one that has missed
too many, or has never answered, all slots.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import torch
from torch import Tensor

from engram.core.method import Method, Slots
from engram.core.method_shapes import nbytes
from engram.core.slots import flat
from engram.core.types import Params
from engram.guards.compression.codes import CODE
from engram.guards.compression.delta_broadcast import VERSION as COUNT
from engram.guards.compression.delta_broadcast import WRITTEN, Broadcast, depth_of
from engram.strategies.running.rounds import Rounds, Wave
from engram.strategies.running.screening import TrainReplies
from engram.wire.messages import Content, Entries
from engram.wire.wire import ARRAYS, CONFIG, OWN, VERSION

_HELD: Final = "held"
_NONE: Final = -1  # version that a client holds of which nothing is known


class Traffic:
    """Bytes of a run's messages, and the version of the slots that each client holds.

    Attributes:
        messages: Whether there are messages, so that clients hold slots.
    """

    def __init__(self, cast: Broadcast, rounds: Rounds, clients: int) -> None:
        merge, shapes, self._whole = rounds.merge, rounds.shapes, cast.whole
        self._layout = cast.layout(shapes.method, shapes.common, merge.running)
        at = merge.at(shapes.common, 0)._replace(like=shapes.sent)
        self._up = nbytes(merge.guard.form(at, shapes.sent))
        self.messages = False
        self._held = torch.full((clients,), _NONE, dtype=torch.int64)

    @property
    def size(self) -> int:
        """Bytes that a client receives and sends in a round, if it has missed none."""
        return self._layout.size + self._up

    @property
    def state(self) -> Params:
        """The version that each client holds; set it to resume."""
        return {} if self._whole else {_HELD: self._held}

    @state.setter
    def state(self, state: Params) -> None:
        self._held = state.get(_HELD, self._held)

    def forget(self, clients: Iterable[int] | None = None) -> None:
        """Forgets the models that clients hold; by default, those of all."""
        at = slice(None) if clients is None else [*clients]
        self._held = self._held.clone()
        self._held[at] = _NONE

    def note(self, waves: Sequence[Wave], replied: Sequence[TrainReplies]) -> dict[str, int]:
        """Notes who has answered; returns the bytes of a round, for its record."""
        sent = received = 0
        size, plain = self._layout.size, self._layout.plain_size
        for wave, replies in zip(waves, replied, strict=True):
            version = int(wave.slots[COUNT])
            for client in wave.clients:
                missed = self._missed(version, [client])
                sent += plain if missed is None else missed * size
            done = [client for reply in replies.accepted for client in reply.clients]
            received += self._up * len(done)
            self.forget(wave.clients)
            self._held[done] = version
        return {"bytes-sent": sent, "bytes-received": received}

    def _missed(self, version: int, clients: Sequence[int]) -> int | None:
        """Number of changes that are new to a node; None if it receives all slots."""
        if self._whole:
            return 1
        held = int(self._held[clients].max()) if clients else _NONE
        missed = version - held
        return missed if held != _NONE and 0 <= missed <= depth_of(self._layout) else None

    def code(self, server: Slots, common: Params, clients: Sequence[int]) -> tuple[int, Tensor]:
        """Returns the bytes for a node's clients, and a key; no bytes where it receives all."""
        code, nothing = server[WRITTEN], (_NONE, torch.zeros(0))
        if self._whole:
            there = self._layout.decode(code)  # what a run starts from may be another run's
            return (0, code) if all(x.equal(there[p]) for p, x in common.items()) else nothing
        missed = self._missed(int(server[COUNT]), clients) if self.messages else None
        return nothing if missed is None else (missed, code[len(code) - missed :])


def outgoing(
    method: Method, server: Slots, traffic: Traffic | None = None
) -> Callable[[Entries, Sequence[int]], Content]:
    """Returns ``(config, clients) -> content``, the content of messages to clients.

    It has the common slots, one object for all messages that are alike, by which a process groups
    them, and the clients' own.
    """
    arrays = flat(method.server.send(server, [0])[0])
    made = {_NONE: arrays}

    def content(config: Entries, clients: Sequence[int]) -> Content:
        key = _NONE
        if traffic is not None:
            config[VERSION] = int(server[COUNT])
            key, code = traffic.code(server, arrays, clients)
            if key not in made:
                made[key] = {CODE: code}
        records = {ARRAYS: made[key], CONFIG: config}
        if own := flat(method.server.send(server, clients)[1]):
            records[OWN] = own
        return records

    return content
