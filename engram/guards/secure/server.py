"""The server's side of a secure round: it unmasks the sum of the survivors' updates."""

from collections.abc import Callable, Mapping, Set
from contextlib import suppress

from engram.core.checks import must
from engram.guards.secure.masks import commitment, mask, pairwise, public_of
from engram.guards.secure.quantize import Words, add, subtract
from engram.guards.secure.session import Session
from engram.guards.secure.shares import join
from engram.guards.secure.signatures import Advert
from engram.settings.errors import Refused


def unmask(
    session: Session,
    total: Words,
    *,
    adverts: Mapping[int, Advert],
    commitments: Mapping[int, bytes],
    survivors: Set[int],
    revealed: Mapping[int, Mapping[int, bytes]],
) -> Words:
    """Returns the sum of the survivors' updates (Bonawitz et al. CCS 2017, Fig. 4, round 4).

        sum of x_u = sum of y_u - sum of PRG(b_u)
                     - sum over u in U3, v in U2 minus U3 of +-PRG(s_uv)    (mod 2^32)

    Args:
        session: The terms.
        total: The sum of the survivors' masked updates.
        adverts: All parties' keys.
        commitments: Commitments to their seeds of the parties that have sent shares, U2.
        survivors: U3.
        revealed: By party that answered, U5, a share for each party of U2.

    Raises:
        Refused: Too few parties have answered, or shares are false.
    """
    if len(revealed) < session.threshold:
        raise Refused(must("shares", f"those of {len(revealed)}", f"{session.threshold} parties'"))
    answers = dict(sorted(revealed.items())[: session.threshold])
    found = total
    for party in sorted(commitments):
        if party in survivors:
            seed = _secret(party, answers, commitment, commitments[party])
            found = subtract(found, mask(seed, *total.shape))
        else:
            key = _secret(party, answers, public_of, adverts[party].masking)
            others = {u: adverts[u].masking for u in survivors}
            # What the survivors added against this party is minus what it would have added.
            found = add(found, pairwise(party, key, others, session.purpose, *total.shape))
    return found


def _secret(
    party: int,
    answers: Mapping[int, Mapping[int, bytes]],
    public: Callable[[bytes], bytes],
    told: bytes,
) -> bytes:
    with suppress(KeyError, ValueError):
        secret = join({holder: shares[party] for holder, shares in answers.items()})
        if public(secret) == told:
            return secret
    raise Refused(f"shares of the secret of client-{party} must give that secret: some are false")
