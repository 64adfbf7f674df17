"""Updates as they leave clients: clipped, noised, and in fewer bytes."""

from collections.abc import Sequence, Set
from logging import getLogger
from typing import TYPE_CHECKING, Any

from engram.cohort.round import Held, Outcome
from engram.cohort.trainer.chunks import Asked, Chunk
from engram.cohort.trainer.client_memory import Recollection
from engram.core.method import Method
from engram.core.method_shapes import Shapes
from engram.core.slots import flat
from engram.core.types import Params
from engram.settings.errors import Names, few

if TYPE_CHECKING:
    from engram.guards.compressed_updates import FewerBytes
    from engram.guards.noise import Noise
    from engram.settings.experiment import Experiment

_log = getLogger("flwr.engram")


class Sending:
    """Clips, noises and compresses what clients send, and reads what they receive in fewer bytes.

    Args:
        experiment: The settings.
        method: The method.
        shapes: The slots of a client.
        running: Names of running statistics.
        names: Names of clients.
        noise: The source of the noise of local privacy; None for a secret one.
        covers: Whether all that clients send has noise, and what diverged is sent as no change.
    """

    def __init__(
        self,
        experiment: "Experiment",
        method: Method,
        shapes: Shapes,
        running: Set[str],
        names: Names,
        *,
        noise: "Noise | None",
        covers: bool,
    ) -> None:
        self._experiment, self._method, self._running = experiment, method, running
        self._names, self._noise, self._covers = names, noise, covers
        self._paths = [*flat(shapes.common)]
        self._fewer = _fewer_bytes(experiment, shapes, running)

    def leave(
        self, done: Outcome, asked: Asked, chunk: Chunk, memories: Recollection
    ) -> tuple[Outcome, list[Params]]:
        """Returns what clients send, and what each of them keeps beside the method's slots.

        Args:
            done: The outcome of their training.
            asked: What all clients of the round were asked.
            chunk: The clients.
            memories: Their memories, from before the round.
        """
        left = self._protected(done, asked, chunk)
        return (
            self._fewer.leave(left, asked, chunk.clients, memories) if self._fewer else (left, [])
        )

    def received(
        self,
        arrays: Params,
        version: int,
        clients: Sequence[int],
        memories: Recollection,
        server_round: int,
    ) -> Params:
        """Returns the slots, by path, that a message brings to clients before a round.

        Raises:
            EngramError: It brings changes of slots that none of them holds.
        """
        if self._fewer is None:
            return arrays
        found = self._fewer.received(arrays, version, clients, memories, server_round)
        return {path: found[path] for path in self._paths}  # whose order sums over slots follow

    def _protected(self, done: Outcome, asked: Asked, chunk: Chunk) -> Outcome:
        """Clips and noises the slots that clients send."""
        e = self._experiment
        if not e.update_clip or e.clip_quantile:  # the server clips
            return done
        from engram.core.clip_and_noise import Walker  # noqa: PLC0415 - not always needed
        from engram.guards.aggregation import leave_client  # noqa: PLC0415 - likewise
        from engram.guards.noise import secret_noise  # noqa: PLC0415 - rarely needed

        walker, (_, clients, own) = Walker(self._method, self._running), chunk
        how: dict[str, Any] = {"clients": clients, "server_round": asked.server_round}
        how["noise"] = self._noise or secret_noise
        sent = done.sent.stack()
        if not self._covers:
            left = leave_client(e, walker, asked.common, own, sent, **how)
            return done._replace(sent=Held(left))
        from engram.guards.local_noise import leave_covered  # noqa: PLC0415 - only nodes need it

        if done.broken:
            _log.warning(
                "clients %s send noise alone in round %d: their training diverged",
                few([clients[i] for i in done.broken], self._names),
                asked.server_round,
            )
        leaving = leave_covered(e, walker, asked.common | own, sent, **how)
        return done._replace(sent=Held(leaving), broken={})


def _fewer_bytes(e: "Experiment", shapes: Shapes, running: Set[str]) -> "FewerBytes | None":
    """Returns what writes and reads messages in fewer bytes; None where they stay as they are."""
    if e.compress == "none":
        return None
    from engram.guards.compressed_updates import FewerBytes  # noqa: PLC0415 - rarely needed

    return FewerBytes(e, shapes, running)
