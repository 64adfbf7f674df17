"""Range checks of the weights and statistics that clients claim.

Some slots hold weights and denominators: shares of classes, choices of models, traces. A method
declares their ranges, ``Method.claims``. An update outside of them is impossible, and left out.
"""

from collections.abc import Mapping
from typing import Final

from torch import Tensor

from engram.core.method import Claim, Slots, Update
from engram.core.slots import flat, unflat
from engram.core.types import Params
from engram.guards.guard import Guard
from engram.guards.places import At
from engram.guards.refusals import Refusal

_ROUNDING: Final = 1e-4  # of shares that add up to 1


def claimed_ranges(claims: Mapping[str, Claim], *, mend: bool = False) -> Guard:
    """Builds a check of statistics that serve as weights or denominators by their ranges.

    Args:
        claims: By ``slot/name``; a method declares its own.
        mend: Whether those out of range are moved back, since noise may have done it, or refused.
    """

    def admit(_: At, update: Update) -> Update | Refusal:
        if mend:
            return update._replace(slots=projected(claims, update.slots))
        wrong = impossible(claims, flat(update.slots))
        return Refusal("range", wrong, update) if wrong else update

    return Guard("claimed-ranges", admit=admit)


def impossible(claims: Mapping[str, Claim], sent: Params) -> str:
    """Describes the first claim that is out of its range; "" if there is none.

    ``sent`` has the arrays of an update, or of several with a leading axis, by path.
    """
    for path, claim in _in_order(claims):
        leaf = sent[path]
        if claim == "sums":
            if (leaf[~(shares_of(path, sent) > 0)] != 0).any():
                return f"{path} must be 0 for a class whose share is 0"
        elif leaf.min() < 0:
            return f"{path} must be at least 0, got {float(leaf.min()):.3g}"
        elif claim == "shares" and (total := float(leaf.sum(-1).max())) > 1 + _ROUNDING:
            return f"{path} must add up to at most 1, got {total:.3g}"
    return ""


def projected(claims: Mapping[str, Claim], slots: Slots) -> Slots:
    """Returns an update with its claims moved into their ranges, where noise took them out."""
    sent = flat(slots)
    for path, claim in _in_order(claims):
        leaf = sent[path]
        if claim == "sums":
            sent[path] = leaf * (shares_of(path, sent) > 0)[..., None]
        else:
            leaf = leaf.clamp(min=0)
            whole = claim == "shares"
            sent[path] = leaf / leaf.sum(-1, keepdim=True).clamp(min=1) if whole else leaf
    return unflat(sent, slots)


def _in_order(claims: Mapping[str, Claim]) -> list[tuple[str, Claim]]:
    return sorted(claims.items(), key=lambda item: item[1] == "sums")


def shares_of(path: str, sent: Params) -> Tensor:
    """Returns the shares of the classes that a claim of sums is of."""
    return sent[path.removesuffix("sums") + "shares"]
