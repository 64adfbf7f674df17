"""Updates that are left out of a round."""

from collections.abc import Sequence
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


def parted(found: Sequence[Update | Refusal]) -> tuple[list[Update], list[Refusal]]:
    """Sorts updates and refusals apart."""
    updates, refused = list[Update](), list[Refusal]()
    for x in found:
        if isinstance(x, Refusal):
            refused.append(x)
        else:
            updates.append(x)
    return updates, refused
