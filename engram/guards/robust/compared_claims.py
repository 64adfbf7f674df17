"""Bounds of the amounts and means of classes that clients claim, by comparison with others'."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from engram.core.method import Claim, Update
from engram.core.slots import flat, unflat
from engram.core.types import Params
from engram.guards.guard import Guard
from engram.guards.places import At
from engram.guards.robust.claims import shares_of
from engram.guards.robust.weight_limit import weight_limit


def compared_claims(claims: Mapping[str, Claim], amount: float, mean: float) -> Guard:
    """Builds a bound on claims, each possible by itself, by comparison with a round's others.

    Args:
        claims: By ``slot/name``.
        amount: An amount counts at most this many times the median one; see ``weight_limit``.
        mean: A class's mean has at most this many times the longest mean of the median update.
    """

    def gather(_: At, updates: Sequence[Update]) -> list[Update]:
        sent = [flat(update.slots) for update in updates]
        for path, claim in claims.items():
            if claim == "amount":
                limit = float(weight_limit([float(each[path]) for each in sent], amount))
                for each in sent:
                    each[path] = each[path].clamp(max=limit)
            elif claim == "sums":
                lengths = [_lengths(path, each) for each in sent]
                limit = float(weight_limit([float(x.max()) for x in lengths], mean))
                for each, own in zip(sent, lengths, strict=True):
                    if own.max() > limit:
                        near = (limit / own).clamp(max=1)[:, None]
                        each[path] = each[path] * near.to(each[path])
        pairs = zip(updates, sent, strict=True)
        return [update._replace(slots=unflat(each, update.slots)) for update, each in pairs]

    return Guard("compared-claims", least=2, gather=gather)


def _lengths(path: str, sent: Params) -> Tensor:
    """Returns the length of each class's mean, (classes,); 0 for classes without rows."""
    shares = shares_of(path, sent).double()
    lengths = torch.linalg.vector_norm(sent[path].double(), dim=1)
    return torch.where(shares > 0, lengths / torch.where(shares > 0, shares, 1.0), 0.0)
