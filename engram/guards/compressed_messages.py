"""Bytes of a round's messages where these are compressed, and who holds which version of the slots.

Every client counts as a machine of its own, as nodes with one client are: one that was asked in the
round before receives one change, one that was away all that it has missed, and one that has missed
too many, or has never answered, all slots.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from engram.core.method import Method, Slots
from engram.core.slots import flat
from engram.core.types import Params
from engram.guards.compression import Layout
from engram.guards.delta_broadcast import CODE as SENT
from engram.guards.delta_broadcast import VERSION, depth_of
from engram.guards.update_codec import Uplink, is_whole, layout_down
from engram.strategies.rounds import Rounds, Wave
from engram.strategies.screening import TrainReplies
from engram.wire.wire import CODE, to_record

if TYPE_CHECKING:
    from engram.settings.experiment import Experiment

__all__ = ["Coded", "Traffic", "is_traffic"]

_HELD: Final = "traffic/held"
_NONE: Final = -1  # version that a client holds of which nothing is known


class Coded(NamedTuple):
    """The replies of clients that send bytes.

    Attributes:
        uplink: Reads them.
        common: The slots that the clients received.
    """

    uplink: Uplink
    common: Slots

    @property
    def like(self) -> Params:
        """The arrays of one client in a reply."""
        return {CODE: torch.empty(self.uplink.layout.size, dtype=torch.uint8)}

    def read(self, arrays: Params) -> Params:
        """Returns the arrays that clients have sent, of their bytes.

        Raises:
            ValueError: The bytes are not those of such arrays.
        """
        return flat(self.uplink.decode_each(self.common, arrays[CODE]))


class Traffic:
    """Counts bytes, and chooses what a message brings.

    Args:
        uplink: Reads what clients send.
        down: How the slots that all clients receive are written.
        whole: Whether they are written, or their changes.
        clients: Number of clients.

    Attributes:
        uplink: As given.
        messages: Whether rounds are trained by messages, so that clients hold what they received.
    """

    def __init__(self, uplink: Uplink, down: Layout, *, whole: bool, clients: int) -> None:
        self.uplink = uplink
        self._down, self._whole = down, whole
        self.messages = False
        self._held = torch.full((clients,), _NONE, dtype=torch.int64)

    @classmethod
    def of(cls, e: "Experiment", rounds: Rounds, clients: int) -> Self | None:
        """Builds it for a run; returns None where nothing is compressed."""
        if e.compress == "none":
            return None
        method, running = rounds.merge.method, rounds.merge.walker.running
        common, _ = method.server.send(method.server.start, [])
        down = layout_down(e, method, common, running)
        uplink = Uplink.of(e, method, rounds.shapes.sent, running)
        return cls(uplink, down, whole=is_whole(e), clients=clients)

    @property
    def size(self) -> int:
        """Bytes that a client receives and sends in a round, if it has missed none."""
        return self._down.size + self.uplink.layout.size

    @property
    def state(self) -> Params:
        """The version that each client holds; set it to resume."""
        return {} if self._whole else {_HELD: self._held}

    @state.setter
    def state(self, state: Params) -> None:
        self._held = state.get(_HELD, self._held)

    def forget(self, clients: Iterable[int] | None = None) -> None:
        """Forgets what clients hold; by default, what all do."""
        at = slice(None) if clients is None else [*clients]
        self._held = self._held.clone()
        self._held[at] = _NONE

    def coded(self, method: Method, wave: Wave) -> Coded:
        """Returns the reader of replies to a wave."""
        return Coded(self.uplink, method.server.send(wave.slots, [])[0])

    def note(self, waves: Sequence[Wave], replied: Sequence[TrainReplies]) -> dict[str, int]:
        """Notes who has answered; returns the bytes of a round, for its record."""
        sent = received = 0
        for wave, replies in zip(waves, replied, strict=True):
            version = int(wave.slots[VERSION])
            sent += sum(self._bytes(version, client) for client in wave.clients)
            done = [client for _, reply in replies.accepted for client in reply.clients]
            received += self.uplink.layout.size * len(done)
            self.forget(wave.clients)
            self._held[done] = version
        return {"bytes-sent": sent, "bytes-received": received}

    def _bytes(self, version: int, client: int) -> int:
        """Returns the bytes of the slots that a client receives."""
        if self._whole:
            return self._down.size
        missed = self._missed(version, [client])
        return self._down.plain_size if missed is None else missed * self._down.size

    def _missed(self, version: int, clients: Sequence[int]) -> int | None:
        """Returns how many changes are new to a node; None if it receives all slots."""
        held = int(self._held[clients].max()) if clients else _NONE
        missed = version - held
        return missed if held != _NONE and 0 <= missed <= depth_of(self._down) else None

    def records(self, server: Slots, common: Params) -> "Records":
        """Returns the records of messages that bring slots of the server.

        Args:
            server: The server's slots.
            common: Those of them that all clients receive alike.
        """
        return Records(self, server, common)

    def code(self, server: Slots, common: Params, clients: Sequence[int]) -> tuple[int, Tensor]:
        """Returns the bytes for a node's clients, and a key; no bytes where it receives all."""
        code, nothing = server[SENT], (_NONE, torch.zeros(0))
        if self._whole:
            there = self._down.decode(code)  # what a run starts from may be another run's
            return (0, code) if all(x.equal(there[p]) for p, x in common.items()) else nothing
        missed = self._missed(int(server[VERSION]), clients) if self.messages else None
        return nothing if missed is None else (missed, code[len(code) - missed :])


class Records:
    """Records of the slots that all clients receive; one object for all messages that are alike.

    Args:
        traffic: Chooses what a message brings.
        server: The server's slots.
        common: Those of them that all clients receive alike.
    """

    def __init__(self, traffic: Traffic, server: Slots, common: Params) -> None:
        self._traffic, self._server, self._common = traffic, server, common
        self._made: dict[int, ArrayRecord] = {}

    @property
    def version(self) -> int:
        """Version of the slots."""
        return int(self._server[VERSION])

    def record(self, clients: Sequence[int]) -> ArrayRecord:
        """Returns the record for a node's clients."""
        key, code = self._traffic.code(self._server, self._common, clients)
        if key not in self._made:
            self._made[key] = to_record(self._common if key == _NONE else {CODE: code})
        return self._made[key]


def is_traffic(name: str) -> bool:
    """Whether an array of a strategy's state is of what clients hold."""
    return name == _HELD
