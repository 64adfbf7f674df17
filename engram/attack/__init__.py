"""Attacks on a federation, to measure how much harm they do and how much a defence keeps out.

Attacks on *updates* know everything: they forge what attackers send from what they would have sent
honestly, and from what everybody else sends in the same round. Attacks on *rows* spoil what
attackers train on. The others lie about what an update, or a score, stands for. Each is a pure
function in a file of its own; ``engram.attack.attacks`` puts them into a simulation.
"""

from importlib import import_module
from typing import Final, Protocol

from engram.core.types import Params


class Forge(Protocol):
    """An attack on updates."""

    def __call__(self, own: Params, honest: Params) -> Params:
        """Returns the changes that attackers send.

        Args:
            own: The changes that they would send honestly, with a leading axis of attackers.
            honest: The changes of the others, with a leading axis of clients.
        """


ON_UPDATES: Final = {
    "sign-flip": "sign_flip",
    "scaled": "scaled",
    "alie": "alie",
    "ipm": "ipm",
}
"""Attacks on updates, by their modules."""


def forge_of(name: str) -> Forge:
    """Returns the attack on updates of a name in ``ON_UPDATES``."""
    forge: Forge = import_module(f"engram.attack.{ON_UPDATES[name]}").forged
    return forge
