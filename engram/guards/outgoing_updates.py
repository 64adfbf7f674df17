"""Updates as they leave clients: clipped, noised, and in fewer bytes.

What compression leaves out of an update stays in its client's memory, beside what the method keeps.
So does, where a server sends changes alone, what they are changes of.
"""

from collections.abc import Callable, Sequence, Set
from logging import getLogger
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import vmap

from engram.cohort.round import Held, Outcome
from engram.cohort.trainer.chunks import Asked, Chunk
from engram.cohort.trainer.client_memory import Recollection
from engram.core.changes import origin_of
from engram.core.method import Method, Slots
from engram.core.method_shapes import Shapes
from engram.core.slots import flat, over_slots, unflat
from engram.core.streams import Stream
from engram.core.types import Params
from engram.guards.changes import arrays_of, is_running, size_of
from engram.guards.delta_broadcast import advanced
from engram.guards.guard import Guard
from engram.guards.noise import Noise, secret_noise
from engram.guards.presets import client_guards
from engram.guards.update_codec import Codes
from engram.settings.errors import EngramError, Names, few
from engram.wire.wire import CODE

if TYPE_CHECKING:
    from engram.settings.experiment import Experiment

_log = getLogger("flwr.engram")

_RESIDUAL, _RECEIVED, _VERSION = "residual", "received", "version"


class Sending:
    """Clips, noises and encodes the updates of clients, and decodes what they receive.

    Without ``noise`` that of local privacy is secret. With ``covers`` all that clients send has
    noise, and what diverged is sent as no change.
    """

    def __init__(
        self,
        experiment: "Experiment",
        method: Method,
        shapes: Shapes,
        running: Set[str],
        names: Names,
        *,
        noise: Noise | None,
        covers: bool,
    ) -> None:
        e, self._method, self._running = experiment, method, running
        self._guard = client_guards(e)
        self._names, self._noise, self._covers = names, noise or secret_noise, covers
        self._paths = [*flat(shapes.common)]
        self._codes = None if e.compress == "none" else Codes.of(e, shapes, running)

    def leave(
        self, done: Outcome, asked: Asked, chunk: Chunk, memories: Recollection
    ) -> tuple[Outcome, list[Params]]:
        """Returns the updates that are sent, and arrays to keep beside the method's slots."""
        left = done
        if self._guard.leaves:
            left = self._protected(done, asked, chunk)
        if self._codes is None:
            return left, []
        return self._encoded(self._codes, left, asked, chunk.clients, memories)

    def _protected(self, done: Outcome, asked: Asked, chunk: Chunk) -> Outcome:
        (_, clients, own), server_round = chunk, asked.server_round
        if done.broken and self._covers:
            _log.warning(
                "clients %s send noise alone in round %d: their training diverged",
                few([clients[i] for i in done.broken], self._names),
                server_round,
            )

        def draw(size: int, stream: Stream) -> list[Tensor]:
            return [self._noise(size, stream, server_round, client) for client in clients]

        what = self._method, self._running, asked.common, own, done.sent.stack()
        sent = leave_clients(self._guard, *what, draw)
        return done._replace(sent=Held(sent), broken={} if self._covers else done.broken)

    def _encoded(
        self,
        codes: Codes,
        done: Outcome,
        asked: Asked,
        clients: Sequence[int],
        memories: Recollection,
    ) -> tuple[Outcome, list[Params]]:
        """Encodes updates as bytes, if a message brought the slots that their clients received.

        In one process they send the slots that the bytes stand for.
        """
        common, server_round, version = asked.common, asked.server_round, asked.version
        sent, each, beside = over_slots(Tensor.cpu, done.sent.stack()), list[Tensor](), []
        held: Params = {}
        if version is not None and not codes.whole:
            held = {f"{_RECEIVED}/{path}": leaf.cpu() for path, leaf in flat(common).items()}
            held[_VERSION] = torch.tensor(version)
        for i, client in enumerate(clients):
            if i in done.broken:  # nothing of it is sent, or kept
                each.append(torch.zeros(codes.up.size, dtype=torch.uint8))
                beside.append(Params())
                continue
            code, left = codes.encode(
                common,
                over_slots(lambda leaf, i=i: leaf[i], sent),
                _below(_RESIDUAL, memories.beside(client, before=server_round)),
                client=client,
                server_round=server_round,
            )
            each.append(code)
            beside.append({f"{_RESIDUAL}/{path}": leaf for path, leaf in left.items()} | held)
        slots: Slots = {CODE: torch.stack(each)}
        if version is None:
            device = next((x.device for x in flat(common).values()), torch.device("cpu"))
            slots = over_slots(lambda x: x.to(device), codes.decode(common, slots[CODE]))
        return done._replace(sent=Held(slots)), beside

    def received(
        self,
        arrays: Params,
        version: int,
        clients: Sequence[int],
        memories: Recollection,
        server_round: int,
    ) -> Params:
        """Returns the slots, by path, that a message brings to clients before a round.

        One of the clients may hold the slots that the changes in ``arrays`` are of.

        Raises:
            EngramError: The bytes are not those of such slots, or nobody holds what they change.
        """
        codes = self._codes
        if codes is None:
            return arrays
        found = arrays
        if arrays.keys() == {CODE}:
            code = arrays[CODE]
            try:
                if codes.whole:
                    found = codes.down.decode(code)
                else:
                    found = _base(version - len(code), clients, memories, server_round)
                    for change in code:
                        found = advanced(codes.down, found, codes.down.decode(change))
            except (ValueError, RuntimeError) as error:
                raise EngramError(f"a message must hold bytes of slots: {error}") from error
        return {path: found[path] for path in self._paths}  # whose order sums over slots follow


def leave_clients(
    guard: Guard,
    method: Method,
    running: Set[str],
    common: Slots,
    own: Slots,
    sent: Slots,
    draw: Callable[[int, Stream], Sequence[Tensor]],
) -> Slots:
    """Returns clients' updates as guards let them leave.

    Each depends on its client alone, so that a client's privacy does not depend on who else trains
    or on how nodes host clients. A client that is asked again answers with new noise, at the same
    privacy cost; a run reports the cost of what it asked for itself.

    A server that wants more than noise allows could send others: slots so large that a small change
    is rounded up, or that training diverges on some rows and not on others. So guards act on the
    changes, in float64, before they are added to what was received, and rounding comes last.

    Args:
        guard: The guards.
        method: The method.
        running: Names of running statistics.
        common: The slots that all of the clients received alike.
        own: Their own slots that they received, with a leading client axis.
        sent: The slots that they send, with a leading client axis.
        draw: ``(size, purpose)`` -> standard normal numbers of each client, (size,).
    """
    update = flat(sent)
    paths = [path for path in update if not is_running(method, running, path)]
    if guard.hides and len(paths) < len(update):
        raise EngramError("running statistics have no noise: they must not leave a client")
    if not paths:
        return sent
    begun = flat(origin_of(method, common | own, sent))
    change = {path: update[path].double() - begun[path].double() for path in paths}
    size = size_of(change) // len(next(iter(change.values())))
    drawn = {s: arrays_of(torch.stack([*draw(size, s)]), change) for s in guard.draws}
    left: Params = vmap(guard.leave)(change, drawn)
    after = dict(update)
    for path, x in left.items():
        moved = (begun[path].double() + x).to(update[path].dtype)
        # What guards leave as it is stays so to the last bit.
        after[path] = torch.where(x == change[path], update[path], moved)
    return unflat(after, sent)


def _base(version: int, clients: Sequence[int], memories: Recollection, at: int) -> Params:
    """Returns the slots of a version that one of the clients has received before a round.

    Raises:
        EngramError: None of them holds these.
    """
    for client in clients:
        memory = memories.beside(client, before=at)
        if _VERSION in memory and int(memory[_VERSION]) == version:
            return _below(_RECEIVED, memory)
    raise EngramError(
        f"changes must be of slots that a client here received, and none has version {version}:"
        " the server sends all of them next time"
    )


def _below(prefix: str, arrays: Params) -> Params:
    start = f"{prefix}/"
    return {p.removeprefix(start): leaf for p, leaf in arrays.items() if p.startswith(start)}
