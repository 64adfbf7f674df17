"""A whole secure round in memory, with parties that drop out at any stage."""

import random
from functools import reduce

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from engram.guards.secure.party import Party
from engram.guards.secure.quantize import add
from engram.guards.secure.server import unmask
from engram.guards.secure.session import Session, threshold
from engram.guards.secure.signatures import Identity

STAGES = ("advertise", "share", "mask", "agree", "reveal")


def entropy(seed):
    """A source of bytes that tests can repeat."""
    return random.Random(seed).randbytes


def session(parties, **special):
    """Terms of so many parties, with a client each."""
    asked = tuple((party, 1) for party in range(parties))
    given = {"training": "t", "number": 1, "asked": asked, "bound": 1.0, "most": 1}
    given["threshold"] = threshold(parties, 2 / 3)
    return Session(**given | special)


class Round:
    """The parties of a round and their server, which goes from stage to stage.

    Attributes:
        keys: The parties' registered keys.
        there: The parties that are there.
        masked: The masked updates that the server has received.
    """

    def __init__(self, terms, updates, seed=0, keys=None):
        self.terms, self.updates = terms, updates
        self.keys = keys or {p: ec.generate_private_key(ec.SECP256R1()) for p in updates}
        self.there = {
            p: Party(terms, Identity(p, key), self.registry, entropy(1000 * (seed + 1) + p))
            for p, key in self.keys.items()
        }
        self.adverts, self.commitments, self.sealed, self.masked = {}, {}, {}, {}
        self.signatures, self.revealed = {}, {}

    def to(self, last, **gone):
        """Goes through the stages to this one; parties in ``gone`` drop out at theirs."""
        for stage in STAGES[: STAGES.index(last) + 1]:
            getattr(self, stage)(gone.get(stage, ()))
        return self

    def registry(self, party):
        return self.keys[party].public_key()

    def without(self, gone):
        self.there = {p: party for p, party in self.there.items() if p not in gone}

    def advertise(self, gone=()):
        self.without(gone)
        self.adverts = {p: party.advert for p, party in self.there.items()}

    def share(self, gone=()):
        self.without(gone)
        for p, party in self.there.items():
            self.sealed[p] = party.share({q: advert.data for q, advert in self.adverts.items()})
            self.commitments[p] = self.sealed[p].pop(p)

    def for_party(self, p):
        return {q: sealed[p] for q, sealed in self.sealed.items() if q != p}

    def mask(self, gone=()):
        for p, party in self.there.items():
            party.open(self.for_party(p))
        self.without(gone)
        for p, party in self.there.items():
            self.masked[p] = add(self.updates[p], party.mask(*self.updates[p].shape))

    def agree(self, gone=()):
        self.without(gone)
        for party in self.there.values():
            self.signatures |= party.agree([*self.masked])

    def reveal(self, gone=()):
        self.without(gone)
        for p, party in self.there.items():
            self.revealed[p] = party.reveal(self.signatures)

    def unmask(self):
        return unmask(
            self.terms,
            reduce(add, self.masked.values()),
            adverts=self.adverts,
            commitments=self.commitments,
            survivors={*self.masked},
            revealed=self.revealed,
        )


def vectors(parties, size, seed=0):
    """Uniform numbers of 32 bits for each party."""
    rng = np.random.default_rng(seed)
    return {p: rng.integers(2**32, size=size, dtype=np.uint32) for p in parties}
