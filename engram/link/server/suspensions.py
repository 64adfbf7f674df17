"""Suspends nodes after repeated unusable replies."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from logging import getLogger
from typing import Any, Final, NamedTuple

from engram.settings.errors import few

_log = getLogger("flwr.engram")

_FAULTS: Final = 2  # unusable replies from which on a node is suspended
_FIRST, _LONGEST = 60.0, 3600.0  # seconds of a suspension: the first, and the longest
_TRUSTED: Final = 10  # good replies in a row after which a node's faults are forgotten


class _Conduct(NamedTuple):
    """A node's count of unusable replies, of good ones since the last, and its suspension."""

    faults: int
    good: int = 0
    until: float = 0.0
    told: dict[str, Any] | None = None


class Suspensions:
    """Counts each node's unusable replies, and suspends it from the second on.

    The first suspension lasts a minute, each further one twice as long, up to an hour. Faults are
    forgotten after ten good replies in a row rather than one, since a node that answers well every
    other time costs the others as much as one that never does.
    """

    def __init__(self) -> None:
        self._conduct: dict[int, _Conduct] = {}

    def note_good(self, node: int) -> None:
        """Notes a reply that could be read."""
        if node not in self._conduct:
            return
        conduct = self._conduct[node]
        self._conduct[node] = conduct._replace(good=conduct.good + 1)
        if conduct.good + 1 == _TRUSTED:
            del self._conduct[node]

    def note_fault(self, node: int, clients: Sequence[int], reason: str) -> None:
        """Notes an unusable reply, and warns if the node is suspended for it."""
        faults = self._conduct[node].faults + 1 if node in self._conduct else 1
        if faults < _FAULTS:
            self._conduct[node] = _Conduct(faults)
            return
        seconds = min(_FIRST * 2.0 ** min(faults - _FAULTS, 10), _LONGEST)
        until = datetime.fromtimestamp(time.time() + seconds, UTC).isoformat(" ", "seconds")
        told = {"clients": list(clients), "until": until, "reason": reason}
        self._conduct[node] = _Conduct(faults, until=time.monotonic() + seconds, told=told)
        line = "node %d (clients %s) is left out until %s, since its replies are unusable: %s"
        _log.warning(line, node, few(clients), until, reason)

    def current(self) -> dict[int, dict[str, Any]]:
        """Returns the suspended nodes: their ``clients``, ``until`` when, and the ``reason``."""
        now = time.monotonic()
        return {
            node: conduct.told
            for node, conduct in self._conduct.items()
            if conduct.told is not None and now < conduct.until
        }
