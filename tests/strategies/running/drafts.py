"""Honest replies as drafts to be spoilt, and the register of ways to spoil them."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from flwr.app import RecordDict

from engram.settings.errors import UNUSABLE, Refused
from engram.wire.flower import from_flower, to_flower
from engram.wire.messages import Error, Reply

HUGE = 10**5000  # more digits than Python writes
LONG = "x" * 10**5
NASTY = ["", None, LONG, "fine\nengram: all is well", "\r\x1b[2J\x1b[31m", "\0\a\b", "%s %d {0}"]
NASTY += ["\u202egnp.exe", "\ud800", "\u2028\x85", "[/red]", "\n" * 1000, "\x1b" * 1000, "é" * 400]


class Forgery(NamedTuple):
    """A family of spoilt replies.

    Attributes:
        kind: What screening must say of them.
        part: What of a reply they spoil: a record, or the ``whole``.
        spoil: Changes a draft, in one of many ways.
    """

    kind: str
    part: str
    spoil: Callable[["Draft", np.random.Generator], object]


TRAIN: list[Forgery] = []
EVALUATE: list[Forgery] = []


def forgery(kind, part, *registers):
    def register(spoil):
        for forgeries in registers or (TRAIN,):
            forgeries.append(Forgery(kind, part, spoil))
        return spoil

    return register


class Draft:
    """An honest reply's parts as Flower's records, to be spoilt and sealed."""

    def __init__(self, reply):
        records = to_flower(reply.content)
        self.records = {key: dict(record) for key, record in records.items()}
        self.types = {key: type(record) for key, record in records.items()}
        self.error = None

    @property
    def arrays(self):
        return self.records["arrays"]

    @property
    def metrics(self):
        return self.records["metrics"]

    @property
    def clients(self):
        return self.records["clients"]

    def seal(self, question):
        if self.error is not None:
            return Reply(question, error=self.error)
        parts = {key: self.types[key](record) for key, record in self.records.items()}
        try:
            return Reply(question, from_flower(RecordDict(parts)))
        except Refused as error:  # as a grid says it
            return Reply(question, error=Error(UNUSABLE, str(error)))


def pick(rng, options):
    return options[rng.integers(len(options))]


def do(rng, *ways):
    return pick(rng, ways)()
