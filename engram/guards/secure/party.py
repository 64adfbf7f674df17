"""A party of a secure round. Bonawitz et al. CCS 2017, Fig. 4, with two additions.

Shares are bound to a digest of the terms and of all keys, so that parties who were told different
keys cannot read each other's; and a digest of a party's seed shows whether shares of it were true.
"""

from collections.abc import Mapping, Sequence

from engram.guards.secure.checks import check_adverts, check_named, check_senders, check_signed
from engram.guards.secure.masks import SEED, commitment, mask, pairwise, public_of
from engram.guards.secure.quantize import Words, add
from engram.guards.secure.sealing import Post
from engram.guards.secure.session import Session
from engram.guards.secure.shares import SHARE, Entropy, split
from engram.guards.secure.signatures import Advert, Identity, Registry, sign_survivors, transcript


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
        self._post = Post(session, self._told, own, self._sealing, self._entropy)
        self._seed = self._entropy(SEED)  # b
        holders, secrets = sorted(self._adverts), (self._masking, self._seed)
        keys, seeds = (split(x, holders, session.threshold, self._entropy) for x in secrets)
        shares = {party: keys[party] + seeds[party] for party in holders}
        self._shares = {own: shares.pop(own)}
        sealed = {p: self._post.seal(self._adverts[p], both) for p, both in shares.items()}
        return sealed | {own: commitment(self._seed)}

    def open(self, sealed: Mapping[int, bytes]) -> None:
        """Reads the shares of others, who with it are U2 (round 2, before it masks its update).

        Raises:
            Refused: As ``check_senders`` and ``Post.unseal``.
        """
        self._begin("open")
        check_senders(self.session, self._adverts.keys(), sealed.keys(), self.number)
        for other, data in sealed.items():
            self._shares[other] = self._post.unseal(self._adverts[other], data)

    def mask(self, *shape: int) -> Words:
        """Returns the mask of its update x_u, of its shape (round 2, MaskedInputCollection).

        y_u - x_u = PRG(b_u) + sum over v in U2 of +-PRG(s_uv)    (mod 2^32; see ``quantize.add``)
        """
        self._begin("mask")
        others = {p: self._adverts[p].masking for p in self._shares if p != self.number}
        pairs = pairwise(self.number, self._masking, others, self.session.purpose, *shape)
        return add(mask(self._seed, *shape), pairs)

    def agree(self, named: Sequence[int]) -> dict[int, bytes]:
        """Signs who the survivors are, of whom the server has updates (round 3, ConsistencyCheck).

        Raises:
            Refused: As ``check_named``.
        """
        self._begin("agree")
        check_named(self.session, self._shares.keys(), named, self.number)
        self.survivors = frozenset(named)
        return {self.number: sign_survivors(self._told, self.survivors, self._key)}

    def reveal(self, signatures: Mapping[int, bytes]) -> dict[int, bytes]:
        """Returns one share of each party's secrets (round 4, Unmasking).

        It is a share of the seed of each survivor, and of the masking key of each other party:
        never of both, since no party is in both sets, which no later call can change.

        ``signatures`` are the survivors', by signer, U4.

        Raises:
            Refused: As ``check_signed``.
        """
        self._begin("reveal")
        survivors, least = self.survivors, self.session.threshold
        check_signed(least, self._told, survivors, signatures, self._registry)
        return {p: x[SHARE:] if p in survivors else x[:SHARE] for p, x in self._shares.items()}

    def _begin(self, stage: str) -> None:
        if self._stages[:1] != (stage,):
            raise self.session.out_of_turn(self.number)
        self._stages = self._stages[1:]  # also where it is refused
