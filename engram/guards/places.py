"""Places where guards act."""

import os
from collections.abc import Callable, Set
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
from torch import Tensor

from engram.core.method import Method, Slots, Update
from engram.core.streams import Stream


def _absent(name: str) -> Callable[..., NoReturn]:
    def absent(*_: object) -> NoReturn:
        raise LookupError(f"at.{name} is not given at this place: see engram.guards.places.At")

    return absent


class Sum(NamedTuple):
    """A sum over parties: sites, each of which sends the part of its clients.

    Attributes:
        clients: Clients of all parties.
        parties: Parties, n.
        least: Parties without which there is no sum, t.
        most: Largest weight of a client, as a number of rows.
        mask: ``shape -> `` words of this shape, which vanish from the sum.
        entropy: ``size -> bytes``, secret and uniform.
    """

    clients: int = 1
    parties: int = 1
    least: int = 1
    most: int = 1
    mask: Callable[..., npt.NDArray[np.uint32]] = _absent("sum.mask")
    entropy: Callable[[int], bytes] = os.urandom


class At(NamedTuple):
    """Where guards act.

    Attributes:
        method: The method, as the chain has changed it.
        running: Names of running statistics, which no guard bounds or adds noise to.
        asked: Clients asked in a round; of a random cohort, their expected number.
        server: The server's slots.
        received: ``update -> slots`` that its client received; of a mean, those of all alike.
        normal: ``(size, stream) -> (size,)``, secret standard normal numbers; the same never twice.
        drawn: ``stream -> generator``, which is a function of seed and round.
        reply: ``update -> `` a key of the reply that it came in, with others of its node.
        note: Called with an update that a guard has shortened for its length.
        bound: Largest norm of an update's change where the guard stands; infinite: none is known.
        sum: The sum that an update is a part of, or all of.
        like: Slots that a client sends, of which a sum has names and shapes alone.
        uniform: ``(size, stream) -> (size,)``, numbers in [0, 1), where updates leave clients: a
            function of seed, round and client, of which each call takes the next.
    """

    method: Method
    running: Set[str]
    asked: int
    server: Slots
    received: Callable[[Update], Slots]
    normal: Callable[[int, Stream], Tensor] = _absent("normal")
    drawn: Callable[[Stream], np.random.Generator] = _absent("drawn")
    reply: Callable[[Update], object] = id
    note: Callable[[Update], object] = id
    bound: float = float("inf")
    sum: Sum = Sum()
    uniform: Callable[[int, Stream], Tensor] = _absent("uniform")
    like: Slots = {}  # noqa: RUF012 - nobody writes to it
