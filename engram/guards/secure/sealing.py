"""Shares on their way between parties, through a server that cannot read them: AES-256-GCM."""

from typing import Final, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from engram.core.checks import must
from engram.guards.secure.masks import agreed
from engram.guards.secure.session import Session
from engram.guards.secure.shares import SHARE, Entropy
from engram.guards.secure.signatures import Advert
from engram.settings.errors import Refused

_NONCE: Final = 12


class Post(NamedTuple):
    """A party's way to others: each message is bound to the round, its sender and its receiver."""

    session: Session
    told: bytes  # the transcript of the terms and of all keys
    own: int  # the party
    private: bytes  # its key for sealed shares, c^SK
    entropy: Entropy

    def seal(self, to: Advert, shares: bytes) -> bytes:
        """Encrypts shares of the party's two secrets for another."""
        nonce = self.entropy(_NONCE)
        return nonce + self._key(to).encrypt(nonce, shares, self._way(self.own, to.party))

    def unseal(self, sender: Advert, data: bytes) -> bytes:
        """Decrypts the two shares that another has sealed for the party.

        Raises:
            Refused: They were not sealed by it, for this way.
        """
        party, way = sender.party, self._way(sender.party, self.own)
        try:
            shares = self._key(sender).decrypt(data[:_NONCE], data[_NONCE:], way)
        except (InvalidTag, ValueError) as error:
            words = f"shares of client-{party} must be sealed by it, for this round"
            raise Refused(words) from error
        if len(shares) != 2 * SHARE:
            raise Refused(must(f"shares of client-{party}", len(shares), f"of {2 * SHARE} bytes"))
        return shares

    def _key(self, other: Advert) -> AESGCM:
        purpose = b"engram secure shares" + self.session.digest
        return AESGCM(agreed(self.private, other.sealing, purpose))

    def _way(self, sender: int, receiver: int) -> bytes:
        return self.told + sender.to_bytes(8) + receiver.to_bytes(8)
