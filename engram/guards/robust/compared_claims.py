"""Bounds of the amounts and means of classes that clients claim, by comparison with others'."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from engram.core.method import Claim, Update
from engram.core.slots import flat, unflat
from engram.core.types import Params
from engram.guards.guard import Guard
from engram.guards.robust.claims import shares_of
from engram.guards.robust.weight_limit import weight_limit


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


def _lengths(path: str, sent: Params) -> Tensor:
    """Returns the length of each class's mean, (classes,); 0 for classes without rows."""
    shares = shares_of(path, sent).double()
    lengths = torch.linalg.vector_norm(sent[path].double(), dim=1)
    return torch.where(shares > 0, lengths / torch.where(shares > 0, shares, 1.0), 0.0)
