"""Messages of a secure round: the entries of each stage.

All entries are bytes by party, and the sender of none is trusted.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Literal

from engram.core.checks import brief
from engram.wire.messages import Entries
from engram.wire.wire import read_list

SECURE: Final = "secure"
"""Name of the record with a stage's entries; in a message to train, of the shares for the party."""
STAGE: Final = "stage"

Stage = Literal["keys", "shares", "survivors", "unmask"]
"""Stages that a query asks for, rounds 0, 1, 3 and 4 of Fig. 4; in round 2 clients train."""

_LONGEST: Final = 512  # bytes of an entry: a pair of sealed shares has 160


def to_entries(data: Mapping[int, bytes]) -> dict[str, Any]:
    """Returns the entries of a record with bytes by party."""
    return {"parties": list(data), "data": list(data.values())}


def read_entries(record: Entries) -> dict[int, bytes]:
    """Reads the entries of ``to_entries``.

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
        times = Counter(parties)
        wrong = [party for party in times if party not in found or times[party] > 1]
        raise ValueError(
            f"data must be at most {_LONGEST} bytes for each of different parties, which have "
            f"numbers from 0, got something else of {brief(wrong)}"
        )
    return found
