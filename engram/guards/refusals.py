"""Updates that are left out of a round."""

from typing import Literal, NamedTuple

from engram.core.method import Update


class Refusal(NamedTuple):
    """Why an update is left out of a round.

    Attributes:
        kind: In a word, by which records count it: ``size``, ``range``, ``malformed``.
        reason: In a line.
        update: The update, as it came to the guard.
    """

    kind: Literal["size", "range", "malformed"]
    reason: str
    update: Update
