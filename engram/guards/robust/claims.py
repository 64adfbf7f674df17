"""Range checks and bounds of the weights and statistics that clients claim.

Some slots hold weights and denominators: shares of classes, choices of models, traces. A method
declares their ranges, ``Method.claims``. An update outside of them is impossible, and left out;
inside, amounts and means of classes are bounded by comparison with those of other clients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import torch
from torch import Tensor

from engram.core.method import Claim, Slots, Update
from engram.core.slots import flat, unflat
from engram.core.types import Params
from engram.guards.guard import Guard
from engram.guards.places import At
from engram.guards.refusals import Refusal
from engram.guards.robust.weight_limit import weight_limit

_ROUNDING: Final = 1e-4  # of shares that add up to 1


@dataclass(frozen=True)
class ClaimedRanges:
    """Holds statistics that serve as weights or denominators to their ranges."""

    claims: Mapping[str, Claim]  # by ``slot/name``; a method declares its own
    # Whether claims are moved into their ranges, where noise takes honest ones out, too, instead of
    # refused.
    mend: bool = False

    def build(self) -> Guard:
        """Builds the guard."""

        def admit(_: At, update: Update) -> Update | Refusal:
            if self.mend:
                return update._replace(slots=projected(self.claims, update.slots))
            wrong = impossible(self.claims, flat(update.slots))
            return Refusal("range", wrong, update) if wrong else update

        return Guard("claimed-ranges", admit=admit)


@dataclass(frozen=True)
class ComparedClaims:
    """Bounds claims, each possible by itself, by comparison with those of a round's others."""

    claims: Mapping[str, Claim]  # by ``slot/name``
    amount: float  # an amount counts at most this many times the median one; see ``weight_limit``
    # A class's mean is at most this many times as long as the longest mean of the median update.
    mean: float

    def build(self) -> Guard:
        """Builds the guard."""
        bound = partial(bounded, self.claims, amount=self.amount, mean=self.mean)
        return Guard("compared-claims", least=2, gather=lambda at, updates: bound(updates))


def impossible(claims: Mapping[str, Claim], sent: Params) -> str:
    """Describes the first claim that is out of its range; "" if there is none.

    ``sent`` has the arrays of an update, or of several with a leading axis, by path.
    """
    for path, claim in _in_order(claims):
        leaf = sent[path]
        if claim == "sums":
            if (leaf[~(_shares_of(path, sent) > 0)] != 0).any():
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
            sent[path] = leaf * (_shares_of(path, sent) > 0)[..., None]
        else:
            leaf = leaf.clamp(min=0)
            whole = claim == "shares"
            sent[path] = leaf / leaf.sum(-1, keepdim=True).clamp(min=1) if whole else leaf
    return unflat(sent, slots)


def bounded(
    claims: Mapping[str, Claim], updates: Sequence[Update], *, amount: float, mean: float
) -> list[Update]:
    """Bounds the claims of a round's updates by comparison: see ``ComparedClaims``."""
    sent = [flat(update.slots) for update in updates]
    for path, claim in claims.items():
        if claim == "amount":
            limit = float(weight_limit([float(each[path]) for each in sent], amount))
            for each in sent:
                each[path] = each[path].clamp(max=limit)
        elif claim == "sums":
            lengths = [_lengths(path, each) for each in sent]
            longest = np.array([float(x.max()) for x in lengths])
            limit = float(weight_limit(longest, mean))
            for each, own in zip(sent, lengths, strict=True):
                if own.max() > limit:
                    each[path] = each[path] * (limit / own).clamp(max=1)[:, None].to(each[path])
    return [u._replace(slots=unflat(each, u.slots)) for u, each in zip(updates, sent, strict=True)]


def _in_order(claims: Mapping[str, Claim]) -> list[tuple[str, Claim]]:
    return sorted(claims.items(), key=lambda item: item[1] == "sums")


def _shares_of(path: str, sent: Params) -> Tensor:
    return sent[path.removesuffix("sums") + "shares"]


def _lengths(path: str, sent: Params) -> Tensor:
    """Returns the length of each class's mean, (classes,); 0 for classes without rows."""
    shares = _shares_of(path, sent).double()
    lengths = torch.linalg.vector_norm(sent[path].double(), dim=1)
    return torch.where(shares > 0, lengths / torch.where(shares > 0, shares, 1.0), 0.0)
