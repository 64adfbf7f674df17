"""The server's side of a secure round: it unmasks the sum of the survivors' updates."""

from collections.abc import Mapping, Set

from engram.core.checks import must
from engram.guards.secure.masks import commitment, mask, pairwise, public_of
from engram.guards.secure.quantize import Words
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
    found = total.copy()
    for party in sorted(commitments):
        secret = _secret(party, answers)
        if party in survivors:
            _check(party, commitment(secret) == commitments[party])
            found -= mask(secret, total.size)
        else:
            _check(party, public_of(secret) == adverts[party].masking)
            others = {u: adverts[u].masking for u in survivors}
            # What the survivors added against this party is minus what it would have added.
            found += pairwise(party, secret, others, session.purpose, total.size)
    return found


def _secret(party: int, answers: Mapping[int, Mapping[int, bytes]]) -> bytes:
    try:
        return join({holder: shares[party] for holder, shares in answers.items()})
    except (KeyError, ValueError) as error:
        raise _false(party) from error


def _check(party: int, fits: bool) -> None:
    if not fits:
        raise _false(party)


def _false(party: int) -> Refused:
    return Refused(f"shares of the secret of client-{party} must give that secret: some are false")
