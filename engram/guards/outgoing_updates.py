"""Updates as they leave clients: clipped, noised, and in fewer bytes.

What compression leaves out of an update stays in its client's memory, beside what the method keeps.
So does, where a server sends changes alone, what they are changes of.
"""

from collections.abc import Sequence, Set
from logging import getLogger
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import vmap

from engram.cohort.round import Held, Outcome
from engram.cohort.trainer.chunks import Asked, Chunk
from engram.cohort.trainer.client_memory import Recollection
from engram.core.clip_and_noise import Walker, origin_of
from engram.core.method import Method, Slots
from engram.core.method_shapes import Shapes
from engram.core.slots import flat, over_slots
from engram.core.streams import Stream
from engram.core.types import Params
from engram.guards.accounting.calibration import noise_multiplier
from engram.guards.delta_broadcast import advanced
from engram.guards.noise import Noise, secret_noise
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
        e = self._experiment = experiment
        self._walker = Walker(method, running)
        self._names, self._noise, self._covers = names, noise or secret_noise, covers
        self._paths = [*flat(shapes.common)]
        self._codes = None if e.compress == "none" else Codes.of(e, shapes, running)

    def leave(
        self, done: Outcome, asked: Asked, chunk: Chunk, memories: Recollection
    ) -> tuple[Outcome, list[Params]]:
        """Returns the updates that are sent, and arrays to keep beside the method's slots."""
        left, e = done, self._experiment
        if e.update_clip and not e.clip_quantile:  # else the server clips
            left = self._protected(done, asked, chunk)
        if self._codes is None:
            return left, []
        return self._encoded(self._codes, left, asked, chunk.clients, memories)

    def _protected(self, done: Outcome, asked: Asked, chunk: Chunk) -> Outcome:
        e, (_, clients, own), server_round = self._experiment, chunk, asked.server_round
        if done.broken and self._covers:
            _log.warning(
                "clients %s send noise alone in round %d: their training diverged",
                few([clients[i] for i in done.broken], self._names),
                server_round,
            )
        sent = leave_clients(
            e,
            self._walker,
            asked.common,
            own,
            done.sent.stack(),
            clients=clients,
            server_round=server_round,
            noise=self._noise,
        )
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
    e: "Experiment",
    walker: Walker,
    common: Slots,
    own: Slots,
    sent: Slots,
    *,
    clients: Sequence[int],
    server_round: int,
    noise: Noise,
) -> Slots:
    """Clips clients' updates and adds local noise, before they leave the clients.

        origin + min(1, C / |change|) change + z C xi,    xi ~ N(0, I)

    Each update depends on its client alone, so that a client's privacy does not depend on who else
    trains or on how nodes host clients. A client that is asked again answers with new noise, at the
    same privacy cost; a run reports the cost of what it asked for itself.

    A server that wants more than the noise allows could send others: slots so large that a small
    change is rounded up, or that training diverges on some rows and not on others. So noise is
    added to the changes, in float64, before they are added to what was received, and rounding comes
    last; and an update that is not finite counts as no change.

    Args:
        e: The settings: C is ``clip``, which is positive, and z the noise multiplier.
        walker: The method's walker.
        common: The slots that all of the clients received alike.
        own: Their own slots that they received, with a leading client axis.
        sent: The slots that they send, with a leading client axis.
        clients: The clients.
        server_round: The round.
        noise: Source of the noise.
    """

    def clipped(mine: Slots, update: Slots) -> Slots:
        return walker.clip(common | mine, update, e.clip)

    moved, rest = walker.apart(sent)
    if e.privacy == "local" and flat(rest):
        raise EngramError("running statistics have no noise: they must not leave a client")
    if not flat(moved):
        return sent
    if e.privacy != "local":
        near: Slots = vmap(clipped, in_dims=(0 if own else None, 0))(own, sent)
        return near
    exact = over_slots(Tensor.double, moved)
    origin = origin_of(walker.method, over_slots(Tensor.double, common | own), exact)
    change = over_slots(torch.sub, exact, origin)
    rows = torch.cat([leaf.reshape(len(leaf), -1) for leaf in flat(change).values()], dim=1)
    norms = torch.linalg.vector_norm(rows, dim=1)
    scale = torch.where(norms.isfinite(), (e.clip / norms).clamp(max=1.0), 0.0)

    def held(leaf: Tensor) -> Tensor:
        near = leaf * scale.view(-1, *[1] * (leaf.ndim - 1))
        return torch.where(near.isfinite(), near, 0.0)  # 0 times infinity

    drawn = [noise(rows.shape[1], Stream.CLIENT_NOISE, server_round, c) for c in clients]
    deviation = noise_multiplier(e) * e.clip
    noisy: Slots = vmap(lambda x, normal: walker.add_noise(x, deviation, normal))(
        over_slots(held, change), torch.stack(drawn).to(rows)
    )
    whole = over_slots(lambda x, y, like: (x + y).to(like.dtype), noisy, origin, moved)
    return walker.joined(whole, rest, sent)


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
