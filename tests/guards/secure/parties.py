"""A whole secure round in memory, with parties that drop out at any stage."""

import random

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from engram.guards.secure.client import add_masks, advertise, agree, open_shares, reveal, share
from engram.guards.secure.server import unmask
from engram.guards.secure.session import Session, threshold


def entropy(seed):
    """A source of bytes that tests can repeat."""
    return random.Random(seed).randbytes


def session(parties, **special):
    """Terms of so many parties, with a client each."""
    given = {
        "training": "t",
        "number": 1,
        "asked": tuple((party, 1) for party in range(parties)),
        "threshold": threshold(parties, 2 / 3),
        "bound": 1.0,
        "most": 1,
    }
    return Session(**given | special)


class Round:
    """The parties of a round and their server, which goes from stage to stage.

    Attributes:
        keys: The parties' registered keys.
        states: The states of those that are there.
        masked: The masked updates that the server has received.
    """

    def __init__(self, terms, updates, seed=0):
        self.terms, self.updates = terms, updates
        self.keys = {p: ec.generate_private_key(ec.SECP256R1()) for p in updates}
        self.entropy = {p: entropy((seed + 1) * 1000 + p) for p in updates}
        self.states, self.adverts, self.commitments, self.sealed = {}, {}, {}, {}
        self.masked, self.signatures, self.revealed = {}, {}, {}

    def registry(self, party):
        return self.keys[party].public_key()

    def without(self, gone):
        self.states = {p: state for p, state in self.states.items() if p not in gone}

    def advertise(self, gone=()):
        for p in self.updates:
            self.states[p] = advertise(self.terms, p, self.keys[p], self.entropy[p])
        self.without(gone)
        self.adverts = {p: state.advert for p, state in self.states.items()}

    def share(self, gone=()):
        self.without(gone)
        for p, state in self.states.items():
            done = share(state, self.adverts, self.registry, self.entropy[p])
            self.states[p], self.sealed[p], self.commitments[p] = done

    def mask(self, gone=()):
        for p, state in self.states.items():
            mine = {q: sealed[p] for q, sealed in self.sealed.items() if q != p}
            self.states[p] = open_shares(state, mine)
        self.without(gone)
        for p, state in self.states.items():
            self.states[p], self.masked[p] = add_masks(state, self.updates[p])

    def agree(self, gone=()):
        self.without(gone)
        for p, state in self.states.items():
            self.states[p], self.signatures[p] = agree(state, {*self.masked}, self.keys[p])

    def reveal(self, gone=()):
        self.without(gone)
        for p, state in self.states.items():
            self.revealed[p] = reveal(state, self.signatures, self.registry)

    def unmask(self):
        return unmask(
            self.terms,
            sum(self.masked.values(), np.zeros_like(next(iter(self.masked.values())))),
            adverts=self.adverts,
            commitments=self.commitments,
            survivors={*self.masked},
            revealed=self.revealed,
        )


def vectors(parties, size, seed=0):
    """Uniform numbers of 32 bits for each party."""
    rng = np.random.default_rng(seed)
    return {p: rng.integers(2**32, size=size, dtype=np.uint32) for p in parties}
