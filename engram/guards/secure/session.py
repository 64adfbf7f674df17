"""The terms of one secure round."""

import hashlib
import json
from typing import NamedTuple

from engram.core.checks import require
from engram.guards.places import Sum
from engram.guards.secure.quantize import levels, room_of
from engram.settings.errors import Refused


class Session(NamedTuple):
    """The terms of a secure round, which all parties must have been told alike."""

    training: str  # the training's name
    number: int  # the round, >= 1
    asked: tuple[tuple[int, int], ...]  # n >= 2 parties, ascending, with numbers of clients
    threshold: int  # t, parties that must stay until the end; above n / 2
    bound: float  # norm to which each client's update is clipped; > 0
    most: int  # largest weight of a client, as a number of rows; >= 1
    multiplier: float = 0.0  # noise multiplier z of central privacy; 0 for no noise
    work: str = ""  # digest of the settings by which all parties are to train
    model: str = ""  # digest of the model from which they are to

    def check(self) -> None:
        """Raises ``ValueError`` if the terms are impossible, or protect nobody."""
        n, parties = self.parties, [party for party, _ in self.asked]
        require(n >= 2, "parties", n, "2 or more")
        require(parties == sorted({*parties}), "parties", parties, "in ascending order")
        counts = [count for _, count in self.asked]
        require(min(counts) >= 1, "clients", counts, "1 or more of each party")
        ok = n < 2 * self.threshold <= 2 * n
        require(ok, "threshold", self.threshold, f"above one half of {n} parties, and no more")
        require(self.most >= 1, "most-examples", self.most, "1 or more")
        levels(room_of(self.sum, self.multiplier))

    @property
    def parties(self) -> int:
        """Number of parties, n."""
        return len(self.asked)

    @property
    def sum(self) -> Sum:
        """The sum of the parties' updates."""
        clients = sum(count for _, count in self.asked)
        return Sum(clients, self.parties, self.threshold, self.most)

    def out_of_turn(self, party: int) -> Refused:
        """Returns the refusal of a stage that is not a party's next."""
        return Refused(
            f"client-{party} is not at this stage of round {self.number}: each stage is answered "
            "once, in turn, by a process that has answered those before"
        )

    @property
    def digest(self) -> bytes:
        """A digest of the terms."""
        return hashlib.sha256(json.dumps(self).encode()).digest()

    @property
    def purpose(self) -> bytes:
        """The purpose for which the seeds of pairwise masks are derived."""
        return b"engram secure mask" + self.digest


def threshold(parties: int, fraction: float) -> int:
    """Returns the threshold: the least number of parties above a fraction of them.

    Raises:
        ValueError: ``fraction`` is not in [0.5, 1).
    """
    require(0.5 <= fraction < 1, "secure-threshold", fraction, "in [0.5, 1)")
    return min(parties, int(fraction * parties) + 1)
