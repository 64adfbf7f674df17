"""Clients that send and receive in fewer bytes: see ``engram.guards.update_codec``.

What an update leaves out stays in its client's memory, beside what the method keeps. So does, where
a server sends changes alone, what they are changes of.
"""

from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engram.cohort.round import Held, Outcome
from engram.cohort.trainer.chunks import Asked
from engram.cohort.trainer.client_memory import Recollection
from engram.core.method import Slots
from engram.core.method_shapes import Shapes
from engram.core.slots import flat, over_slots
from engram.core.types import Params
from engram.guards.delta_broadcast import advanced
from engram.guards.update_codec import Uplink, is_whole, layout_down
from engram.settings.errors import EngramError
from engram.wire.wire import CODE

if TYPE_CHECKING:
    from engram.settings.experiment import Experiment

_RESIDUAL, _RECEIVED, _VERSION = "residual", "received", "version"


class FewerBytes:
    """Writes what clients send, and reads what they receive.

    Args:
        experiment: The settings, which have ``compress``.
        shapes: The slots of a client.
        running: Names of running statistics.
    """

    def __init__(self, experiment: "Experiment", shapes: Shapes, running: Set[str]) -> None:
        e, method = experiment, shapes.method
        self._up = Uplink.of(e, method, shapes.sent, running)
        self._down = layout_down(e, method, shapes.common, running)
        self._whole = is_whole(e)

    def leave(
        self, done: Outcome, asked: Asked, clients: Sequence[int], memories: Recollection
    ) -> tuple[Outcome, list[Params]]:
        """Writes what clients send: bytes, if a message brought the slots that they received.

        In one process they send what the bytes say. For the arguments see ``Sending.leave``.

        Returns:
            The outcome, and what each client keeps of the round beside the method's slots.
        """
        common, server_round, version = asked.common, asked.server_round, asked.version
        sent, codes, beside = over_slots(Tensor.cpu, done.sent.stack()), list[Tensor](), []
        held: Params = {}
        if version is not None and not self._whole:
            held = {f"{_RECEIVED}/{path}": leaf.cpu() for path, leaf in flat(common).items()}
            held[_VERSION] = torch.tensor(version)
        for i, client in enumerate(clients):
            if i in done.broken:  # nothing of it is sent, or kept
                codes.append(torch.zeros(self._up.layout.size, dtype=torch.uint8))
                beside.append(Params())
                continue
            code, left = self._up.encode(
                common,
                over_slots(lambda leaf, i=i: leaf[i], sent),
                _below(_RESIDUAL, memories.beside(client, before=server_round)),
                client=client,
                server_round=server_round,
            )
            codes.append(code)
            beside.append({f"{_RESIDUAL}/{path}": leaf for path, leaf in left.items()} | held)
        stacked = torch.stack(codes)
        slots: Slots = {CODE: stacked} if version is not None else self._read(common, stacked)
        return done._replace(sent=Held(slots)), beside

    def _read(self, common: Slots, codes: Tensor) -> Slots:
        like = flat(common)
        device = next(iter(like.values())).device if like else torch.device("cpu")
        found: Slots = over_slots(lambda x: x.to(device), self._up.decode_each(common, codes))
        return found

    def received(
        self, arrays: Params, version: int, clients: Sequence[int], memories: Recollection, at: int
    ) -> Params:
        """Returns the slots that a message brings, by path.

        Args:
            arrays: The arrays of the message: the slots, or their bytes.
            version: Version of the slots.
            clients: The clients of the node that it names, one of which may hold the slots that
                changes are of.
            memories: Their memories.
            at: The round before which they are looked at.

        Raises:
            EngramError: The bytes are not those of such slots, or nobody holds what they change.
        """
        if arrays.keys() != {CODE}:
            return arrays
        code = arrays[CODE]
        try:
            if self._whole:
                return self._down.decode(code)
            found = self._base(version - len(code), clients, memories.beside, at)
            for change in code:
                found = advanced(self._down, found, self._down.decode(change))
        except (ValueError, RuntimeError) as error:
            raise EngramError(f"a message must hold bytes of slots: {error}") from error
        return found

    @staticmethod
    def _base(
        version: int, clients: Sequence[int], beside: Callable[..., Params], at: int
    ) -> Params:
        """Returns the slots of a version that one of the clients has received.

        Raises:
            EngramError: None of them holds these.
        """
        for client in clients:
            memory = beside(client, before=at)
            if _VERSION in memory and int(memory[_VERSION]) == version:
                return _below(_RECEIVED, memory)
        raise EngramError(
            f"changes must be of slots that a client here received, and none has version {version}:"
            " the server sends all of them next time"
        )


def _below(prefix: str, arrays: Params) -> Params:
    """Returns the arrays of a branch, by their paths in it."""
    start = f"{prefix}/"
    return {p.removeprefix(start): leaf for p, leaf in arrays.items() if p.startswith(start)}
