"""The terms of one secure round, and the signatures that bind its messages to them.

Each party signs with the key that is registered for it, and knows the others' registered keys. The
server can neither put keys of its own in the place of a party's, nor mix messages of two rounds.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from engram.core.checks import must, require
from engram.guards.secure.quantize import levels
from engram.settings.errors import Refused

Registry = Callable[[int], ec.EllipticCurvePublicKey]
"""Returns the registered key of a party; raises ``Refused`` if there is none."""

_ALGORITHM = ec.ECDSA(hashes.SHA256())


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
        levels(self.room)

    @property
    def parties(self) -> int:
        """Number of parties, n."""
        return len(self.asked)

    @property
    def clients(self) -> int:
        """Number of clients of all parties."""
        return sum(count for _, count in self.asked)

    @property
    def room(self) -> int:
        """Largest magnitude of the sum, in bounds: of the clients, and 8 deviations of the noise.

        Noise of all parties has a deviation of z (L + sqrt(d)) sqrt(n / t) levels, where sqrt(d) is
        at most L / 4. It is larger once in 10^13 numbers, which then wrap.
        """
        spread = self.multiplier * math.sqrt(self.parties / self.threshold)
        return self.clients + math.ceil(8 * 1.25 * spread)

    @property
    def digest(self) -> bytes:
        """A digest of the terms."""
        return hashlib.sha256(json.dumps(self).encode()).digest()

    @property
    def purpose(self) -> bytes:
        """The purpose for which the seeds of pairwise masks are derived."""
        return b"engram secure mask" + self.digest


class Advert(NamedTuple):
    """A party's public keys of a round, signed with its registered key (Fig. 4, round 0)."""

    party: int
    sealing: bytes  # c^PK, with which others encrypt shares for it
    masking: bytes  # s^PK, by which it agrees on masks with others
    signature: bytes  # of both keys, the number and the terms


def threshold(parties: int, fraction: float) -> int:
    """Returns the threshold: the least number of parties above a fraction of them.

    Raises:
        ValueError: ``fraction`` is not in [0.5, 1).
    """
    require(0.5 <= fraction < 1, "secure-threshold", fraction, "in [0.5, 1)")
    return min(parties, int(fraction * parties) + 1)


def words_of_advert(session: Session, party: int, sealing: bytes, masking: bytes) -> bytes:
    """Returns the bytes of an advert that its party signs."""
    return b"engram secure keys\n" + session.digest + _number(party) + sealing + masking


def transcript(session: Session, adverts: Iterable[Advert]) -> bytes:
    """Returns a digest of the terms and of all parties' keys."""
    digest = hashlib.sha256(b"engram secure transcript\n" + session.digest)
    for party, sealing, masking, _ in sorted(adverts):
        digest.update(_number(party) + sealing + masking)
    return digest.digest()


def words_of_survivors(told: bytes, survivors: Iterable[int]) -> bytes:
    """Returns the bytes that a party signs for these survivors (Fig. 4, round 3)."""
    return b"engram secure survivors\n" + told + b"".join(map(_number, sorted(survivors)))


def sign(key: ec.EllipticCurvePrivateKey, words: bytes) -> bytes:
    """Signs with a party's registered key: ECDSA with SHA-256."""
    return key.sign(words, _ALGORITHM)


def check_signatures(signed: Mapping[int, tuple[bytes, bytes]], registry: Registry) -> None:
    """Checks signatures, and the words that they are of, by party.

    Raises:
        Refused: One is not by the party's registered key, or there is no such key; the line names
            the party.
    """
    for party, (words, signature) in signed.items():
        try:
            registry(party).verify(signature, words, _ALGORITHM)
        except InvalidSignature as error:
            expected = f"by the key that is registered for client-{party}"
            raise Refused(must("signature", "another one", expected)) from error


def _number(party: int) -> bytes:
    return party.to_bytes(8)
