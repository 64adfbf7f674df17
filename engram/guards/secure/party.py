"""A party of a secure round. Bonawitz et al. CCS 2017, Fig. 4, with two additions.

Shares are bound to a digest of the terms and of all keys, so that parties who were told different
keys cannot read each other's; and a digest of a party's seed shows whether shares of it were true.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from engram.core.checks import must
from engram.guards.secure.masks import SEED, agreed, commitment, mask, pairwise, public_of
from engram.guards.secure.quantize import Words
from engram.guards.secure.session import Session
from engram.guards.secure.shares import SHARE, Entropy, seal, split, unseal
from engram.guards.secure.signatures import (
    Advert,
    Identity,
    Registry,
    check_adverts,
    check_survivors,
    sign_survivors,
    transcript,
)
from engram.settings.errors import Refused, brief, few


class Party:
    """A party and its secrets: each stage is a method, which it takes once, in their order.

    The server is not trusted: what it sends is checked, and refused with one line.

    Attributes:
        session: The terms of the round.
        number: Its own, u.
        advert: Its signed public keys (round 0, AdvertiseKeys).
        survivors: The parties whose updates are summed, U3, once it has agreed.

    Raises:
        ValueError: The terms are impossible, or protect nobody.
    """

    def __init__(
        self, session: Session, own: Identity, registry: Registry, entropy: Entropy
    ) -> None:
        session.check()
        self.session, (self.number, self._key) = session, own
        self._registry, self._entropy = registry, entropy
        self._sealing, self._masking = entropy(SEED), entropy(SEED)  # c^SK and s^SK
        publics = public_of(self._sealing), public_of(self._masking)
        self.advert = Advert(own.party, *publics).signed(session, own.key)
        self.survivors = frozenset[int]()
        self._stages: tuple[str, ...] = ("share", "open", "mask", "agree", "reveal")

    def share(self, keys: Mapping[int, bytes]) -> dict[int, bytes]:
        """Shares its secrets with the parties that have sent keys, U1 (round 1, ShareKeys).

        Returns:
            For each other one, its shares, sealed; and for itself, the commitment to its seed.

        Raises:
            Refused: As ``check_adverts``.
            ValueError: There are no keys in the bytes.
        """
        self._begin("share")
        own, session = self.number, self.session
        self._adverts = {party: Advert.read(party, data) for party, data in keys.items()}
        check_adverts(session, self._adverts, self.advert, self._registry)
        self._told = transcript(session, self._adverts.values())
        self._seed = self._entropy(SEED)  # b
        holders, secrets = sorted(self._adverts), (self._masking, self._seed)
        keys, seeds = (split(x, holders, session.threshold, self._entropy) for x in secrets)
        shares = {party: keys[party] + seeds[party] for party in holders}
        self._shares = {own: shares.pop(own)}
        sealed = {p: seal(*self._way(own, p), both, self._entropy) for p, both in shares.items()}
        return sealed | {own: commitment(self._seed)}

    def open(self, sealed: Mapping[int, bytes]) -> None:
        """Reads the shares of others, who with it are U2 (round 2, before it masks its update).

        Raises:
            Refused: There are too few, a sender has sent no keys, or shares were not sealed for
                this party, by that sender, in this round.
        """
        self._begin("open")
        own, senders, least = self.number, sealed.keys() | {self.number}, self.session.threshold
        if own in sealed or not senders <= self._adverts.keys() or len(senders) < least:
            among = f"of others of the {len(self._adverts)} parties that have sent keys"
            expected = f"those {among}, of {least - 1} at least"
            raise Refused(must("shares", brief(sorted(sealed)), expected))
        for other, data in sealed.items():
            self._shares = self._shares | {other: unseal(*self._way(other, own), data, other)}

    def mask(self, size: int) -> Words:
        """Returns the mask of its update x_u, (size,) (round 2, MaskedInputCollection).

        y_u - x_u = PRG(b_u) + sum over v in U2 of +-PRG(s_uv)    (mod 2^32)
        """
        self._begin("mask")
        others = {p: self._adverts[p].masking for p in self._shares if p != self.number}
        pairs = pairwise(self.number, self._masking, others, self.session.purpose, size)
        return mask(self._seed, size) + pairs

    def agree(self, named: Sequence[int]) -> dict[int, bytes]:
        """Signs who the survivors are, of whom the server has updates (round 3, ConsistencyCheck).

        Raises:
            Refused: They are too few, or others than those who have sent shares, or one comes
                twice, or this party, which has sent its update, is not among them.
        """
        self._begin("agree")
        own, least, survivors = self.number, self.session.threshold, frozenset(named)
        if len(survivors) < len(named):
            twice = few([party for party, times in Counter(named).items() if times > 1])
            raise Refused(f"survivors must be named once each, got parties {twice} more often")
        if not (own in survivors <= self._shares.keys() and len(survivors) >= least):
            among = f"{least} or more of the {len(self._shares)} parties with shares"
            raise Refused(must("survivors", brief(sorted(survivors)), f"{among}, client-{own} too"))
        self.survivors = survivors
        return {own: sign_survivors(self._told, survivors, self._key)}

    def reveal(self, signatures: Mapping[int, bytes]) -> dict[int, bytes]:
        """Returns one share of each party's secrets (round 4, Unmasking).

        It is a share of the seed of each survivor, and of the masking key of each other party:
        never of both, since no party is in both sets, which no later call can change.

        ``signatures`` are the survivors', by signer, U4.

        Raises:
            Refused: They are too few, of others, or of other survivors.
        """
        self._begin("reveal")
        survivors, least = self.survivors, self.session.threshold
        if not (signatures.keys() <= survivors and len(signatures) >= least):
            expected = f"of {least} or more of the {len(survivors)} survivors"
            raise Refused(must("signatures", brief(sorted(signatures)), expected))
        check_survivors(self._told, survivors, signatures, self._registry)
        return {p: x[SHARE:] if p in survivors else x[:SHARE] for p, x in self._shares.items()}

    def _begin(self, stage: str) -> None:
        if self._stages[:1] != (stage,):
            raise self.session.out_of_turn(self.number)
        self._stages = self._stages[1:]  # also where it is refused

    def _way(self, sender: int, receiver: int) -> tuple[bytes, bytes]:
        """Returns the key of sealed shares, and the words that they are bound to."""
        other = self._adverts[sender if receiver == self.number else receiver]
        purpose = b"engram secure shares" + self.session.digest
        way = self._told + sender.to_bytes(8) + receiver.to_bytes(8)
        return agreed(self._sealing, other.sealing, purpose), way
