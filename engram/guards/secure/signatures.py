"""The signatures that bind the messages of a secure round to its terms.

Each party signs with the key that is registered for it, and knows the others' registered keys. The
server can neither put keys of its own in the place of a party's, nor mix messages of two rounds.
"""

import hashlib
from collections.abc import Callable, Iterable, Set
from typing import Final, NamedTuple, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from engram.core.checks import must
from engram.guards.secure.masks import SEED
from engram.guards.secure.session import Session
from engram.settings.errors import Refused

Registry = Callable[[int], ec.EllipticCurvePublicKey]
"""Returns the registered key of a party; raises ``Refused`` if there is none."""


class Identity(NamedTuple):
    """A party of secure rounds."""

    party: int  # the number of its first client
    key: ec.EllipticCurvePrivateKey  # its registered one


_ALGORITHM: Final = ec.ECDSA(hashes.SHA256())


class Advert(NamedTuple):
    """A party's public keys of a round, signed with its registered key (Fig. 4, round 0)."""

    party: int
    sealing: bytes  # c^PK, with which others encrypt shares for it
    masking: bytes  # s^PK, by which it agrees on masks with others
    signature: bytes = b""  # of both keys, the number and the terms

    @classmethod
    def read(cls, party: int, data: bytes) -> Self:
        """Reads the bytes of ``data``.

        Raises:
            ValueError: There are too few.
        """
        if len(data) <= 2 * SEED:
            raise ValueError(f"keys must be more than {2 * SEED} bytes, got {len(data)}")
        return cls(party, data[:SEED], data[SEED : 2 * SEED], data[2 * SEED :])

    @property
    def data(self) -> bytes:
        """Its bytes, without the party's number."""
        return self.sealing + self.masking + self.signature

    def words(self, session: Session) -> bytes:
        """Returns the bytes that its party signs."""
        keys = self.sealing + self.masking
        return b"engram secure keys\n" + session.digest + _number(self.party) + keys

    def signed(self, session: Session, key: ec.EllipticCurvePrivateKey) -> Self:
        """Signs it with its party's registered key."""
        return self._replace(signature=sign(self.words(session), key))


def transcript(session: Session, adverts: Iterable[Advert]) -> bytes:
    """Returns a digest of the terms and of all parties' keys."""
    digest = hashlib.sha256(b"engram secure transcript\n" + session.digest)
    for party, sealing, masking, _ in sorted(adverts):
        digest.update(_number(party) + sealing + masking)
    return digest.digest()


def sign_survivors(told: bytes, survivors: Set[int], key: ec.EllipticCurvePrivateKey) -> bytes:
    """Signs who the survivors are (Fig. 4, round 3), after a ``transcript``."""
    return sign(survivors_in_words(told, survivors), key)


def survivors_in_words(told: bytes, survivors: Set[int]) -> bytes:
    """Returns the bytes that parties sign of the survivors (Fig. 4, round 3)."""
    return b"engram secure survivors\n" + told + b"".join(map(_number, sorted(survivors)))


def sign(words: bytes, key: ec.EllipticCurvePrivateKey) -> bytes:
    """Signs bytes with a party's registered key, for ``verify``."""
    return key.sign(words, _ALGORITHM)


def verify(party: int, signature: bytes, words: bytes, registry: Registry) -> None:
    """Checks that a signature is by the party's registered key.

    Raises:
        Refused: It is not, or there is no such key.
    """
    try:
        registry(party).verify(signature, words, _ALGORITHM)
    except InvalidSignature as error:
        expected = f"by the key that is registered for client-{party}"
        raise Refused(must("signature", "another one", expected)) from error


def _number(party: int) -> bytes:
    return party.to_bytes(8)
