"""A party's side of a secure round: each function takes the state that the one before it returned.

Bonawitz et al. CCS 2017, Fig. 4, with these additions: shares are bound to a digest of the terms
and of all keys, so that parties who were told different keys cannot read each other's; and a digest
of the seed of each party's own mask shows the server whether shares of it were true.

The server is not trusted: what it sends is checked, and refused with one line.
"""

from collections.abc import Mapping, Set
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from engram.core.checks import must
from engram.guards.secure.masks import SEED, agreed, commitment, mask, pairwise, public_of
from engram.guards.secure.quantize import Words
from engram.guards.secure.session import (
    Advert,
    Registry,
    Session,
    check_signatures,
    sign,
    transcript,
    words_of_advert,
    words_of_survivors,
)
from engram.guards.secure.shamir import SHARE, Entropy, split
from engram.settings.errors import Refused, brief

_NONCE = 12


class Advertised(NamedTuple):
    """A party that has sent its public keys."""

    session: Session
    advert: Advert
    sealing: bytes  # c^SK, private
    masking: bytes  # s^SK, private; others get shares of it


class Shared(NamedTuple):
    """A party that has sent shares of its secrets."""

    before: Advertised
    adverts: Mapping[int, Advert]  # the parties' keys, U1
    told: bytes  # digest of the terms and the keys
    seed: bytes  # b, of its own mask; others get shares of it
    kept: tuple[bytes, bytes]  # its own shares of its masking key and of its seed


class Opened(NamedTuple):
    """A party that has read the others' shares: of masking key and seed, by party, U2."""

    before: Shared
    shares: Mapping[int, tuple[bytes, bytes]]


class Masked(NamedTuple):
    """A party that has sent its masked update: it never masks another."""

    before: Opened


class Agreed(NamedTuple):
    """A party that has signed who the survivors are, U3: it never signs others."""

    before: Opened
    survivors: frozenset[int]


def advertise(
    session: Session, party: int, key: ec.EllipticCurvePrivateKey, entropy: Entropy
) -> Advertised:
    """Makes the keys of a round (round 0, AdvertiseKeys).

    Raises:
        ValueError: The terms are impossible, or protect nobody.
    """
    session.check()
    sealing, masking = entropy(SEED), entropy(SEED)
    publics = public_of(sealing), public_of(masking)
    signature = sign(key, words_of_advert(session, party, *publics))
    return Advertised(session, Advert(party, *publics, signature), sealing, masking)


def share(
    state: Advertised, adverts: Mapping[int, Advert], registry: Registry, entropy: Entropy
) -> tuple[Shared, dict[int, bytes], bytes]:
    """Shares a party's secrets with all parties (round 1, ShareKeys).

    Returns:
        The party; for each other one, its shares, sealed; and the commitment to the seed.

    Raises:
        Refused: There are too few parties, two keys are alike, the party's own are others, or a
            signature is wrong.
    """
    session, own = state.session, state.advert.party
    named = dict(session.asked)
    if len(adverts) < session.threshold or not adverts.keys() <= named.keys():
        expected = f"of {session.threshold} or more of the {len(named)} parties of the terms"
        raise Refused(must("keys", brief(sorted(adverts)), expected))
    if adverts.get(own) != state.advert or any(p != a.party for p, a in adverts.items()):
        raise Refused(f"keys must be those that the parties have sent, client-{own}'s among them")
    publics = {key for a in adverts.values() for key in (a.sealing, a.masking)}
    if len(publics) < 2 * len(adverts):
        raise Refused("keys must be different for all parties, got two alike")
    signed = {
        party: (words_of_advert(session, *advert[:3]), advert.signature)
        for party, advert in adverts.items()
    }
    check_signatures(signed, registry)
    told, seed = transcript(session, adverts.values()), entropy(SEED)
    holders = sorted(adverts)
    keys = split(state.masking, holders, session.threshold, entropy)
    seeds = split(seed, holders, session.threshold, entropy)
    sealed = {}
    for other in holders:
        if other != own:
            nonce = entropy(_NONCE)
            cipher = _cipher(state, adverts[other].sealing)
            body = keys[other] + seeds[other]
            sealed[other] = nonce + cipher.encrypt(nonce, body, _way(told, own, other))
    done = Shared(state, adverts, told, seed, (keys[own], seeds[own]))
    return done, sealed, commitment(seed)


def open_shares(state: Shared, sealed: Mapping[int, bytes]) -> Opened:
    """Reads the shares of U2 (round 2, before the update is masked).

    The senders of the sealed shares, and the party itself, are U2.

    Raises:
        Refused: There are too few, a sender has sent no keys, or shares were not sealed for this
            party, by that sender, in this round.
    """
    session, own = state.before.session, state.before.advert.party
    senders = sealed.keys() | {own}
    if own in sealed or not senders <= state.adverts.keys() or len(senders) < session.threshold:
        among = f"of others of the {len(state.adverts)} parties that have sent keys"
        expected = f"those {among}, of {session.threshold - 1} at least"
        raise Refused(must("shares", brief(sorted(sealed)), expected))
    found = {own: state.kept}
    for other, data in sealed.items():
        cipher = _cipher(state.before, state.adverts[other].sealing)
        try:
            body = cipher.decrypt(data[:_NONCE], data[_NONCE:], _way(state.told, other, own))
        except (InvalidTag, ValueError) as error:
            raise Refused(
                f"shares of client-{other} must be sealed by it, for this round"
            ) from error
        if len(body) != 2 * SHARE:
            raise Refused(must(f"shares of client-{other}", len(body), f"of {2 * SHARE} bytes"))
        found[other] = body[:SHARE], body[SHARE:]
    return Opened(state, found)


def add_masks(state: Opened, update: Words) -> tuple[Masked, Words]:
    """Masks an update (round 2, MaskedInputCollection).

        y_u = x_u + PRG(b_u) + sum over v in U2 of +-PRG(s_uv)    (mod 2^32)

    Returns:
        The party, and y_u, of the update x_u.
    """
    shared = state.before
    first, own = shared.before, shared.before.advert.party
    others = {p: shared.adverts[p].masking for p in state.shares if p != own}
    pairs = pairwise(own, first.masking, others, first.session.purpose, update.size)
    return Masked(state), update + mask(shared.seed, update.size) + pairs


def agree(
    state: Masked, survivors: Set[int], key: ec.EllipticCurvePrivateKey
) -> tuple[Agreed, bytes]:
    """Signs who the survivors are, U3, whose masked updates the server has (ConsistencyCheck).

    Raises:
        Refused: They are too few, or others than those who have sent shares, or this party, which
            has sent its update, is not among them.
    """
    opened = state.before
    session, own = opened.before.before.session, opened.before.before.advert.party
    if not (own in survivors <= opened.shares.keys() and len(survivors) >= session.threshold):
        among = f"{session.threshold} or more of the {len(opened.shares)} parties with shares"
        raise Refused(must("survivors", brief(sorted(survivors)), f"{among}, client-{own} too"))
    words = words_of_survivors(opened.before.told, survivors)
    return Agreed(opened, frozenset(survivors)), sign(key, words)


def reveal(state: Agreed, signatures: Mapping[int, bytes], registry: Registry) -> dict[int, bytes]:
    """Returns one share of each party's secrets (round 4, Unmasking).

    It is a share of the seed of each survivor, and of the masking key of each other party: never of
    both, since no party is in both sets, which no later call can change.

    ``signatures`` are the survivors' of U3, by signer, U4. Nothing of the party is left
    afterwards.

    Raises:
        Refused: They are too few, of others, or of other survivors.
    """
    opened, survivors = state.before, state.survivors
    session = opened.before.before.session
    if not (signatures.keys() <= survivors and len(signatures) >= session.threshold):
        expected = f"of {session.threshold} or more of the {len(survivors)} survivors"
        raise Refused(must("signatures", brief(sorted(signatures)), expected))
    words = words_of_survivors(opened.before.told, survivors)
    check_signatures({party: (words, each) for party, each in signatures.items()}, registry)
    return {
        party: seed if party in survivors else key for party, (key, seed) in opened.shares.items()
    }


def _cipher(state: Advertised, public: bytes) -> AESGCM:
    return AESGCM(agreed(state.sealing, public, b"engram secure shares" + state.session.digest))


def _way(told: bytes, sender: int, receiver: int) -> bytes:
    return told + sender.to_bytes(8) + receiver.to_bytes(8)
