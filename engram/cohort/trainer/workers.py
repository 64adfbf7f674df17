"""Trains the chunks of a round in this process and in others beside it, of one thread each.

They score clients likewise. The others are forked from this process, so that they have its data,
its networks and its functions without a copy, also those that are written in a notebook. All take
one chunk after the other of a pipe, so that one whose core is busy takes fewer. When none is left,
and one that was taken is not back after a chunk's time, this process trains it, too, and whoever is
first gives the outcome.
The chunks are those of a single process (``chunks.deal``), and are merged in their order: neither
the number of processes nor who trains a chunk changes a bit.

A chunk whose process raised an error, or died, is trained again in this one, where the error is
what it would be without others.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from logging import getLogger
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Final

from torch.utils._pytree import tree_map

from engram.cohort.trainer.chunks import Asked, Chunk, Parts, in_order
from engram.cohort.trainer.client_memory import lent, returned
from engram.cohort.trainer.shared_tensors import Arena, copied
from engram.cohort.trainer.worker_pool import others_train, threads_of_grpc
from engram.cohort.trainer.worker_process import Helper, Made, Result, Token, forked, made
from engram.core.machine import available, cores
from engram.core.process_modes import one_core
from engram.data.row_trees import has_lazy

if TYPE_CHECKING:
    from engram.cohort.trainer.trainer import Trainer
    from engram.settings.experiment import Experiment

_log = getLogger("flwr.engram")

_PAYS: Final = 0.02  # seconds of one core that a round takes, from which on others help
_SHARE: Final = 2  # processes together take half of the free memory
_AHEAD: Final = 512  # tokens that a pipe is given at once, which then never waits
_INBOXES: Final = 2  # so that rounds go on while a late process still reads one
_PATIENCE: Final = 1  # of a chunk's time: how long one that others train is waited for
_ALONE: Final = "a process that trained clients %s: from now on one process trains all of them"


class Workers:
    """Trains the rounds of a run by as many processes as pay, as ``chunks.Share``.

    The first two chunks of a run are trained in this process, and show what a round takes.

    Args:
        experiment: The settings; ``cores`` is the number of processes, or 0 for as many as pay.
    """

    def __init__(self, experiment: "Experiment") -> None:
        self._experiment = experiment
        self._trainer: Trainer | None = None
        self._team: _Team | None = None

    def __call__(
        self, trainer: "Trainer", asked: Asked, chunks: Sequence[Chunk]
    ) -> Iterator[Parts]:
        """Trains the chunks of a round; yields their outcomes in the order of the chunks."""
        if asked.scores:
            team = self._team if self._trainer is trainer else None
            yield from (team.train if team else in_order)(trainer, asked, chunks)
            return
        if self._trainer is not trainer:
            self.close()
            self._trainer = trainer
            took = []
            for chunk in chunks[:2]:
                start = time.process_time()
                parts = trainer.chunk(asked, chunk)
                took.append(time.process_time() - start)
                yield parts
            count = self._count(trainer, chunks, min(took) * len(chunks))
            self._team = _Team(trainer, count - 1) if count > 1 else None
            chunks = chunks[2:]
        team = self._team if len(chunks) > 1 else None
        yield from (team.train if team else in_order)(trainer, asked, chunks)

    @property
    def pids(self) -> list[int]:
        """Numbers in the system of the other processes that train."""
        team = self._team.helpers if self._team else []
        return [helper.process.pid for helper in team if helper.process.pid]

    def close(self) -> None:
        """Ends the processes."""
        if self._team is not None:
            self._team.close()
        self._team = self._trainer = None

    def _count(self, trainer: "Trainer", chunks: Sequence[Chunk], seconds: float) -> int:
        wanted = self._experiment.cores
        if wanted == 1 or (not wanted and seconds < _PAYS):
            return 1
        if why := self._alone(trainer):
            warn_alone(self._experiment, why)
            return 1
        largest = max(len(chunk.clients) for chunk in chunks)
        room = available("cpu") // _SHARE // (largest * trainer.bytes_each)
        return int(min(wanted or cores(), len(chunks), max(1, room)))

    def _alone(self, trainer: "Trainer") -> str:
        e = self._experiment
        lazy = has_lazy(trainer.data.train.x)
        elsewhere = multiprocessing.parent_process() is not None or one_core() or others_train()
        reasons = (
            # Elsewhere a process that has threads cannot be forked.
            (sys.platform != "linux", "others can be forked on Linux only"),
            (e.device != "cpu", f"{e.device} is one device"),
            (e.cpu_threads > 1, f"cpu-threads is {e.cpu_threads}"),
            (elsewhere, "other cores train other runs"),
            # As Ray has, too.
            (threads_of_grpc(), "it has threads of gRPC, beside which none may be forked"),
            (lazy and not e.cores, "rows are read as they are drawn, perhaps from an open file"),
        )
        return next((why for holds, why in reasons if holds), "")


def warn_alone(experiment: "Experiment", why: str) -> None:
    """Warns that one process trains all clients although others were asked for."""
    if experiment.cores > 1:
        _log.warning("cores=%d: one process trains all clients, since %s", experiment.cores, why)


class _Team:
    """Processes forked from this one, which train chunks beside it."""

    def __init__(self, trainer: "Trainer", count: int) -> None:
        self._inboxes = [Arena() for _ in range(_INBOXES)]
        # Of each inbox, the chunks in it that others have not given back, by deal and number.
        self._out: list[set[tuple[int, int]]] = [set() for _ in self._inboxes]
        self._dealt, self._lost = 0, ""
        queue, self._end = os.pipe()
        self.helpers: list[Helper] = []
        for _ in range(count):
            self.helpers.append(forked(trainer, self._inboxes, queue, self._end))
        # Opened anew, it does not block here, but still in the others.
        self._queue = os.open(f"/proc/self/fd/{queue}", os.O_RDONLY | os.O_NONBLOCK)
        os.close(queue)

    def train(self, trainer: "Trainer", asked: Asked, chunks: Sequence[Chunk]) -> Iterator[Parts]:
        """Trains the chunks of a round; yields their outcomes in the order of the chunks.

        The first is trained in this process, which shows how long the others may take.
        """
        whole = False
        try:
            self._collect({}, 0)  # what comes too late for its round
            free = (i for i, out in enumerate(self._out) if self.helpers and not out)
            if (inbox := next(free, None)) is None:
                yield from in_order(trainer, asked, chunks)
            else:
                yield from self._dealt_out(trainer, asked, chunks, inbox)
            whole = True
        except Exception:  # a user's metric may raise anything, and the run goes on without scores
            if asked.scores:
                _log.warning("scoring raised an error: from now on one process trains all clients")
            raise
        finally:
            if not whole:  # some are still at work on this round
                self.close()

    def _dealt_out(
        self, trainer: "Trainer", asked: Asked, chunks: Sequence[Chunk], inbox: int
    ) -> Iterator[Parts]:
        done = dict[int, Made | None]()
        tokens = self._tokens(trainer, asked, chunks, inbox)
        self._give(tokens, inbox)
        start = time.perf_counter()
        first = trainer.chunk(asked, chunks[0])
        each = (time.perf_counter() - start) / steps_of(trainer, chunks[0])
        yield first
        waited = 0.0  # since this process has nothing more to do
        for number, chunk in enumerate(chunks[1:], start=1):
            while True:
                self._collect(done, 0)
                if number in done or not self.helpers:
                    break
                self._give(tokens, inbox)
                if token := Token.taken(self._queue):
                    self._out[inbox].discard(token[:2])
                    if token.number == number:
                        break
                    other = chunks[token.number]
                    come = lent(trainer, other.clients, asked.server_round)
                    done[token.number] = made(trainer, asked, other, come)
                    continue
                left = _PATIENCE * each * steps_of(trainer, chunk) - waited
                if left <= 0:
                    break
                begun = time.perf_counter()
                self._collect(done, left)
                waited += time.perf_counter() - begun
            yield self._merged(trainer, asked, chunk, done.pop(number, None))

    def _merged(self, trainer: "Trainer", asked: Asked, chunk: Chunk, found: Made | None) -> Parts:
        """Stores the memories of a chunk, or trains it here if nobody else has."""
        if found is None:
            parts = trainer.chunk(asked, chunk)
            if self._lost:
                _log.warning(_ALONE, self._lost)
                self._lost = ""
            return parts
        parts, memories = found
        returned(trainer, asked, memories)
        return parts

    def close(self) -> None:
        """Ends the processes."""
        for helper in self.helpers:
            helper.process.kill()
            helper.line.close()
            helper.process.join()
            helper.process.close()
            for outbox in helper.outboxes:
                outbox.close()
        if self.helpers:
            os.close(self._end)
            os.close(self._queue)
            for inbox in self._inboxes:
                inbox.close()
        self.helpers = []

    def _tokens(
        self, trainer: "Trainer", asked: Asked, chunks: Sequence[Chunk], inbox: int
    ) -> Iterator[Token]:
        """Shares a round's inputs; yields a token for each chunk but the first."""
        box, out = self._inboxes[inbox], self._out[inbox]
        self._dealt += 1
        box.clear()
        same = box.put(asked)
        for number, chunk in enumerate(chunks[1:], start=1):
            place = box.put((chunk, lent(trainer, chunk.clients, asked.server_round)))
            out.add((self._dealt, number))
            yield Token(self._dealt, number, inbox, same, place)

    def _give(self, tokens: Iterator[Token], inbox: int) -> None:
        some = islice(tokens, _AHEAD - len(self._out[inbox]))
        if given := b"".join(token.packed() for token in some):
            os.write(self._end, given)

    def _collect(self, done: dict[int, Made | None], seconds: float) -> None:
        """Waits for outcomes, and takes those that have come; ends all processes if one is lost."""
        for ready in wait([helper.line for helper in self.helpers], seconds):
            helper = next(helper for helper in self.helpers if helper.line is ready)
            try:
                result: Result = helper.line.recv()
                for out in self._out:
                    out.discard(result[:2])
                current = result.dealt == self._dealt
                if current and result.place is not None:
                    box = helper.outboxes[result.outbox]
                    done[result.number] = tree_map(copied, box.get(result.place))
                helper.line.send(None)
                if not current or result.place is not None:
                    continue
                self._lost = "raised an error, which one process does not"
            except (EOFError, OSError):
                helper.process.join(1)
                self._lost = f"ended with exit code {helper.process.exitcode}"
            self.close()
            return


def steps_of(trainer: "Trainer", chunk: Chunk) -> int:
    """Returns the size of a chunk's work: its rows, or its clients of equal steps."""
    if not trainer.experiment.local_epochs:
        return len(chunk.clients)
    return sum(len(trainer.data.train.rows[client]) for client in chunk.clients)
