"""A process that trains chunks of a round for the process that it was forked from."""

import multiprocessing
import os
import signal
import struct
import warnings
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from engram.cohort.trainer.chunks import Asked, Chunk, Parts
from engram.cohort.trainer.client_memory import Lent, Loan
from engram.cohort.trainer.shared_tensors import Arena, Place
from engram.core.process_modes import filtering
from engram.core.types import Params

if TYPE_CHECKING:
    from engram.cohort.trainer.trainer import Trainer

_OUTBOXES: Final = 2  # outcomes that a helper makes before it waits for a receipt

Made = tuple[Parts, dict[int, Params]]
"""The outcome of a chunk, and the memories of its clients after it."""


_FORM: Final = struct.Struct("8q")  # of a token; a pipe's pages hold whole ones


class Token(NamedTuple):
    """A chunk to be trained, as it stands in the queue."""

    dealt: int  # the number of the deal that it belongs to, which no other one has
    number: int  # the chunk's number in the round
    inbox: int  # the number of the inbox that it is in
    asked: Place  # the place of what all chunks of the round share
    chunk: Place  # the place of the chunk and of the memories that its clients come with

    def packed(self) -> bytes:
        """Returns it as bytes."""
        return _FORM.pack(*self[:3], *self.asked, *self.chunk, 0)

    @classmethod
    def taken(cls, queue: int) -> "Token | None":
        """Takes the next one from a pipe; None if it is closed, or empty and does not block."""
        with suppress(BlockingIOError):
            if found := os.read(queue, _FORM.size):
                dealt, number, inbox, *places = _FORM.unpack(found)
                return cls(dealt, number, inbox, (places[0], places[1]), (places[2], places[3]))
        return None


class Result(NamedTuple):
    """Word of a chunk that a helper has trained."""

    dealt: int  # as in the chunk's token
    number: int  # likewise
    outbox: int  # the number of the outbox that the outcome is in
    place: Place | None  # its place there; None if training raised an error


class Helper(NamedTuple):
    """A process that trains chunks."""

    process: ForkProcess
    line: Connection  # brings each ``Result``, and takes a receipt for it
    outboxes: Sequence[Arena]  # where outcomes are


def forked(trainer: "Trainer", inboxes: Sequence[Arena], queue: int, end: int) -> Helper:
    """Starts a process that never sees Ctrl-C, which is meant for the one that it helps.

    Args:
        trainer: Trains the chunks, as it is now.
        inboxes: Where chunks are.
        queue: The end of the queue that is read.
        end: The end that is written to, which is closed when no chunks will come any more.
    """
    line, other = multiprocessing.Pipe()
    outboxes = [Arena() for _ in range(_OUTBOXES)]
    process = multiprocessing.get_context("fork").Process(
        target=_work, args=(trainer, inboxes, outboxes, queue, end, line, other), daemon=True
    )
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        with filtering():  # threads of others do not train here, so that no lock is held by one
            warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
            process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    other.close()
    return Helper(process, line, outboxes)


def made(trainer: "Trainer", asked: Asked, chunk: Chunk, come: Loan) -> Made | None:
    """Trains a chunk without storing memories; None if that raises an error.

    The error is raised again where the chunk is trained in its turn.
    """
    store, kept = trainer.store, Lent()
    kept.lent = come
    trainer.lend(kept)
    try:
        return trainer.chunk(asked, chunk), kept.made
    except Exception:  # raised again, as its caller trains the chunk in its turn
        return None
    finally:
        trainer.lend(store)


def _work(
    trainer: "Trainer",
    inboxes: Sequence[Arena],
    outboxes: Sequence[Arena],
    queue: int,
    end: int,
    line: Connection,
    own: Connection,
) -> None:
    """Trains chunks until the process that this one was forked from closes the pipe, or dies."""
    os.close(end)  # or nobody would see the pipe closed
    line.close()
    if torch.get_num_threads() > 1:  # threads of a pool are not there after a fork
        torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    dealt = turn = 0
    with suppress(EOFError, OSError):
        while token := Token.taken(queue):
            inbox = inboxes[token.inbox]
            if token.dealt != dealt:
                asked, dealt = inbox.get(token.asked), token.dealt
            found = made(trainer, asked, *inbox.get(token.chunk))
            if turn >= len(outboxes):  # what it holds has been copied once there is a receipt
                own.recv()
            number = turn % len(outboxes)
            outboxes[number].clear()
            place = outboxes[number].put(found) if found else None
            own.send(Result(token.dealt, token.number, number, place))
            turn += 1
