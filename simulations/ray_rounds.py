"""Rounds on a Ray cluster: resident workers train the chunks of each round.

Workers have data and networks from the run's beginning on. With a chunk come what its clients
receive, and their memories, which go back to this process with the outcome: so clients train where
there is room, and no folder need be shared. Outcomes are merged in the order of the chunks.
"""

import os
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from engram.client.hosts import Engine
from engram.client.ray_worker import digest_of
from engram.cohort.trainer.chunks import Asked, Chunk, Parts, cut, in_order
from engram.cohort.trainer.client_memory import lent, returned
from engram.cohort.trainer.shared_tensors import packed, unpacked
from engram.settings.errors import EngramError, few
from engram.settings.fingerprint import fingerprint
from engram.settings.plugins import VARIABLE
from engram.simulations.ray_actors import DIED, Crew

if TYPE_CHECKING:
    from engram.cohort.trainer.trainer import Trainer
    from engram.data.federated import FederatedData
    from engram.settings.experiment import Experiment

_TRIES: Final = 3  # workers that one chunk may take with it


class Cluster:
    """Trains the rounds of a run on a Ray cluster, as ``chunks.Share``.

    There is a worker for each of the cluster's cores, or for ``cpu-threads`` of them, or for each
    GPU if the device is one; a round's clients are dealt in as many chunks at least. A chunk whose
    worker died is trained by another. One that raised an error is trained here, where the error is
    what it would be without a cluster; so is one for which no worker is left.

    Args:
        address: As for ``join``.
        experiment: The settings.
        engine: As for ``simulate``.
        data: The clients' data in this process, which must be those of the workers.

    Attributes:
        cuts: It cuts chunks, so that one alone is shared, too.

    Raises:
        Refused: No cluster answers, it has no room, or a worker runs another source, or reads other
            data.
    """

    cuts: Final = True

    def __init__(
        self, address: str, experiment: "Experiment", engine: Engine, data: "FederatedData"
    ) -> None:
        self._crew = Crew(address, cores=experiment.cpu_threads, gpu=experiment.device != "cpu")
        plugins, home = os.environ.get(VARIABLE, ""), str(Path.cwd())
        try:
            what = fingerprint(), plugins, home, digest_of(data)
            self._crew.start(*what, run=(experiment, engine))
        except BaseException:
            self.close()
            raise

    def __call__(
        self, trainer: "Trainer", asked: Asked, chunks: Sequence[Chunk]
    ) -> Iterator[Parts]:
        """Trains the chunks of a round; yields their outcomes in the order of the chunks."""
        parts = -(-self._crew.size // max(1, len(chunks)))
        chunks = [part for chunk in chunks for part in cut(chunk, parts)]
        if trainer.way not in trainer.ways:  # the fastest is measured here, and once
            yield from in_order(trainer, asked, chunks[:1])
            chunks = chunks[1:]
        same = self._crew.put(packed((asked, trainer.data.units, trainer.way)))
        left, done = deque(range(len(chunks))), dict[int, bytes | None]()
        lost = Counter[int]()
        try:
            for number, chunk in enumerate(chunks):
                while number not in done:
                    while left and self._crew.has_room:
                        part = chunks[one := left.popleft()]
                        memories = lent(trainer, part.clients, asked.server_round)
                        self._crew.give(one, same, packed((part, memories)))
                    if not self._crew.at_work:
                        done[left.popleft()] = None
                        continue
                    for outcome in self._crew.outcomes():
                        if not outcome.lost:
                            done[outcome.number] = outcome.packed
                            continue
                        lost[outcome.number] += 1
                        if lost[outcome.number] == _TRIES:
                            clients = few(chunks[outcome.number].clients, trainer.data.names)
                            raise EngramError(
                                f"{_TRIES} workers died as they trained clients {clients}, {DIED}"
                            )
                        left.appendleft(outcome.number)
                yield self._taken(trainer, asked, chunk, done.pop(number))
        finally:
            self._crew.forget()

    def _taken(
        self, trainer: "Trainer", asked: Asked, chunk: Chunk, outcome: bytes | None
    ) -> Parts:
        if outcome is None:
            return trainer.chunk(asked, chunk)
        found: tuple[Parts, Any] = unpacked(outcome)
        returned(trainer, asked, found[1])
        return found[0]

    def close(self) -> None:
        """Ends the workers."""
        self._crew.close()
