"""A node's log of rounds for its site: lines that are only added, each with the hash of the last.

``today`` counts the rounds of training of a line's day. At ``_LARGEST`` bytes a file is closed and
named for its last line; of closed files the newest ``_CLOSED`` are kept.
"""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from engram.settings.files import refusing
from engram.sites.hash_chain import Chain, Chained, Fields
from engram.wire.clock import now

AUDIT: Final = "log"  # the log's folder in a node's state

RELEASED: Final = "released"
"""Kind of a line about a run whose release the site has signed."""

ANSWERS: Final = ("approved", "refused", RELEASED)
"""Kinds of lines about the site's answers: to requests for approval, and for a release."""

EXPORTED: Final = "exported"
"""Kind of a line about a model, or a memory, that the site took out of the node's state."""

ENDED: Final = "ended"  # kind of a line about work that did not come to its end

_LARGEST: Final = 2**22  # bytes of a file
_CLOSED: Final = 7  # closed files
_ASIDE: Final = ("line", "before", "time", "today")


class Audit:
    """The log in a folder, to which processes of a node add lines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._chain = Chain(folder, "log", largest=_LARGEST, closed=_CLOSED)

    def rounds(self, at: datetime) -> int:
        """Returns the number of rounds of training in the day of a time.

        A clock that was put back does not make the day's rounds fewer.

        Raises:
            Refused: The log cannot be read.
        """
        with refusing(f"{self.folder} cannot be read"):
            return _today(self._chain.last(), at)

    def append(
        self, fields: Mapping[str, Any], *, trained: bool, at: datetime | None = None
    ) -> None:
        """Adds a line, and waits until it is on the disk.

        Those that are ``trained`` count in ``rounds``. A line that a crash has cut off is removed
        first, which is noted in a line of its own. A refusal that is the last line already is not
        repeated.

        Raises:
            OSError: It cannot be written.
        """
        time = at or now()

        def follow(last: Fields, lost: str) -> Fields | None:
            if lost:
                return {**stamp(time), "today": _today(last, time), "kind": "healed", "why": lost}
            same = {key: value for key, value in last.items() if key not in _ASIDE}
            if "why" in fields and not trained and same == {**fields}:
                return None
            return {**stamp(time), "today": _today(last, time) + trained, **fields}

        with self._chain.alone():
            self._chain.extend(follow)

    def read(self) -> Chained:
        """Reads and checks the log; it is empty if there is none.

        Raises:
            Refused: A file of it cannot be read.
        """
        return self._chain.read()


def stamp(at: datetime) -> dict[str, str]:
    """Returns a line's entry of its time."""
    return {"time": at.isoformat(timespec="seconds").replace("+00:00", "Z")}


def _today(line: Mapping[str, Any], at: datetime) -> int:
    """Rounds of training of a day, by the last line so far."""
    count = line.get("today")
    day = str(line.get("time", ""))[:10]
    return count if isinstance(count, int) and day >= f"{at:%Y-%m-%d}" else 0
