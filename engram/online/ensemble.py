"""An ensemble of learners is a learner."""

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from engram.arrays import Array
from engram.checks import require
from engram.online.learner import Learner, checked

S = TypeVar("S")


class Ensemble(NamedTuple, Generic[S]):
    """State of an ensemble."""

    weights: S  # state of the learner that weights the members
    members: tuple[Any, ...]  # state of each member


def ensemble(meta: Learner[S], members: Sequence[Learner[Any]]) -> Learner[Ensemble[S]]:
    """Builds a learner whose decision is the weighted mean of its members' decisions.

    It needs one gradient g per round, at its own decision. All members learn from the linear loss
    <g, x>: a member's gradient is g at any point, and <g, x_i> is its loss as an expert. Members
    may be of different kinds, and advance one after the other; for many of one kind see ``bases``.

    Args:
        meta: A learner of N experts, which weights the members; see ``experts``. Its loss range is
            G D.
        members: N learners with the same domain, for gradients of length at most G.

    Raises:
        ValueError: If there are not N members, or their dimensions differ.
    """
    require(len(members) == meta.dim, "members", len(members), f"{meta.dim}, meta's experts")
    dim = members[0].dim
    dims = [member.dim for member in members]
    require(dims == [dim] * len(members), "members' dimensions", dims, "the same")

    def act(state: Ensemble[S]) -> Array:
        decisions = [m.act(own) for m, own in zip(members, state.members, strict=True)]
        return meta.act(state.weights) @ np.stack(decisions)

    def observe(state: Ensemble[S], gradient: Array) -> Ensemble[S]:
        g = checked(gradient, (dim,))
        losses, after = [], []
        for member, own in zip(members, state.members, strict=True):
            points = member.points(own)
            losses.append(member.act(own) @ g)
            after.append(
                member.observe(own, g if len(points) == 1 else np.tile(g, (len(points), 1)))
            )
        return Ensemble(meta.observe(state.weights, np.array(losses)), tuple(after))

    return Learner(
        dim=dim,
        init=lambda start: Ensemble(meta.init(None), tuple(m.init(start) for m in members)),
        act=act,
        observe=observe,
        points=lambda state: act(state)[None],
    )
