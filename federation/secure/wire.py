"""Messages of a secure round: what each stage asks of a party, and what it answers.

All entries are bytes by party, and the sender of none is trusted.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

from flwr.app import ConfigRecord

from federation.errors import brief
from federation.secure.masks import SEED
from federation.secure.session import Advert, Session, threshold
from federation.settings.protection import ProtectionSettings
from federation.wire import TRAINING, read_int, read_list

SECURE: Final = "secure"
"""Name of the record with a stage's entries; in a message to train, of the shares for the party."""
STAGE: Final = "stage"
MASKED: Final = "masked"
"""Name of the array with a masked update, whose numbers are read as int32."""

Stage = Literal["keys", "shares", "survivors", "unmask"]
"""Stages that a query asks for, rounds 0, 1, 3 and 4 of Fig. 4; in round 2 clients train."""

_LONGEST: Final = 512  # bytes of an entry: a pair of sealed shares has 160


def to_entries(data: Mapping[int, bytes]) -> dict[str, Any]:
    """Returns the entries of a record with bytes by party."""
    return {"parties": list(data), "data": list(data.values())}


def read_entries(record: ConfigRecord) -> dict[int, bytes]:
    """Reads what ``to_entries`` wrote.

    Raises:
        KeyError: An entry is missing.
        TypeError, ValueError: It is something else.
    """
    parties, data = read_list(record, "parties", int), record["data"]
    if not isinstance(data, list) or len(data) != len(parties):
        raise TypeError(f"data must be a list with an entry for each party, got {brief(data)}")
    found = {
        party: each
        for party, each in zip(parties, data, strict=True)
        if isinstance(each, bytes) and len(each) <= _LONGEST and 0 <= party < 2**31
    }
    if len(found) < len(data):
        raise ValueError(f"data must be at most {_LONGEST} bytes for each of different parties")
    return found


def advert_to_bytes(advert: Advert) -> bytes:
    """Writes a party's keys, without its number."""
    return advert.sealing + advert.masking + advert.signature


def advert_from_bytes(party: int, data: bytes) -> Advert:
    """Reads what ``advert_to_bytes`` wrote.

    Raises:
        ValueError: There are too few bytes.
    """
    if len(data) <= 2 * SEED:
        raise ValueError(f"keys must be more than {2 * SEED} bytes, got {len(data)}")
    return Advert(party, data[:SEED], data[SEED : 2 * SEED], data[2 * SEED :])


def terms(parties: int, clients: int) -> dict[str, int]:
    """Returns the entries of a message that tell the terms that a plain round has not."""
    return {"parties-asked": parties, "clients-asked": clients}


def session_of(config: ConfigRecord, e: ProtectionSettings) -> Session:
    """Returns the terms of a round.

    Args:
        config: A message's config.
        e: The settings.

    Raises:
        KeyError: An entry is missing.
        TypeError, ValueError: It is something else.
    """
    parties = read_int(config, "parties-asked")
    return Session(
        str(config[TRAINING]),
        read_int(config, "server-round"),
        parties,
        read_int(config, "clients-asked"),
        threshold(parties, e.secure_threshold),
        e.clip,
        read_int(config, "most-examples"),
        e.noise_multiplier if e.privacy == "central" else 0.0,
    )
