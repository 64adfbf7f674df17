"""Checks of a server's words to a party that does not trust it."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set

from engram.core.checks import must
from engram.guards.secure.session import Session
from engram.guards.secure.signatures import Advert, Registry, survivors_in_words, verify
from engram.settings.errors import Refused, brief, few


def check_adverts(
    session: Session, adverts: Mapping[int, Advert], own: Advert, registry: Registry
) -> None:
    """Checks the keys that a party is told, by party.

    Raises:
        Refused: Parties are too few, keys alike, the party's own others, or signatures wrong.
    """
    named, least = dict(session.asked), session.threshold
    if len(adverts) < least or not adverts.keys() <= named.keys():
        expected = f"of {least} or more of the {len(named)} parties of the terms"
        raise Refused(must("keys", brief(sorted(adverts)), expected))
    if adverts.get(own.party) != own:
        told = f"those that the parties have sent, client-{own.party}'s among them"
        raise Refused(f"keys must be {told}")
    publics = {key for advert in adverts.values() for key in (advert.sealing, advert.masking)}
    if len(publics) < 2 * len(adverts):
        raise Refused("keys must be different for all parties, got two alike")
    for party, advert in adverts.items():
        verify(party, advert.signature, advert.words(session), registry)


def check_senders(session: Session, adverts: Set[int], senders: Set[int], own: int) -> None:
    """Checks who has sent a party shares.

    Raises:
        Refused: They are too few, one has sent no keys, or is the party itself.
    """
    least = session.threshold - 1
    if own in senders or not senders <= adverts or len(senders) < least:
        among = f"of others of the {len(adverts)} parties that have sent keys"
        raise Refused(must("shares", brief(sorted(senders)), f"those {among}, of {least} at least"))


def check_named(session: Session, holders: Set[int], named: Sequence[int], own: int) -> None:
    """Checks who the survivors are to be.

    Raises:
        Refused: They are too few, or others than those who have sent shares, or one comes twice,
            or the party, which has sent its update, is not among them.
    """
    if twice := [party for party, times in Counter(named).items() if times > 1]:
        raise Refused(f"survivors must be named once each, got parties {few(twice)} more often")
    if not (own in {*named} <= holders and len(named) >= session.threshold):
        among = f"{session.threshold} or more of the {len(holders)} parties with shares"
        raise Refused(must("survivors", brief(sorted(named)), f"{among}, client-{own} too"))


def check_signed(
    least: int, told: bytes, survivors: Set[int], signed: Mapping[int, bytes], registry: Registry
) -> None:
    """Checks survivors' signatures of who survives.

    Raises:
        Refused: They are too few, of others, of other survivors, or by unregistered keys.
    """
    if not (signed.keys() <= survivors and len(signed) >= least):
        expected = f"of {least} or more of the {len(survivors)} survivors"
        raise Refused(must("signatures", brief(sorted(signed)), expected))
    words = survivors_in_words(told, survivors)
    for party, signature in signed.items():
        verify(party, signature, words, registry)
