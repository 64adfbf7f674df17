"""The universal ensemble as a server's step: rounds of a federation as rounds of online learning.

The model w_t of round t is a decision, and w_t minus the merged model of the round counts as the
gradient of the round's loss at w_t. If each client takes one step of gradient descent, it is this
gradient times the clients' step size; and scaling all gradients by a number changes no decision. So
neither the clients' nor the server's step size is tuned; only a radius is chosen.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Final

import numpy as np
import torch

from engram.aggregates import Aggregate, Update
from engram.arrays import Array
from engram.checks import require
from engram.online.domains import ball
from engram.online.epochs import Epoch, in_epochs
from engram.online.learner import Learner
from engram.online.universal import Universal, universal_ensemble
from engram.states import from_arrays, to_arrays
from engram.tree import is_finite
from engram.types import Params

__all__ = ["MOST_EXP_CONCAVE", "has_exp_concave", "universal_step"]

MOST_EXP_CONCAVE: Final = 200
"""Parameters with which a model may have base learners for exp-concave losses."""

# T, regardless of the number of rounds: a run may be resumed for more. There are log2 T learners of
# a kind, so that too long a horizon costs little. Restarting to double it would spoil the model for
# many rounds each time (benchmarks/NOTES.md).
_HORIZON: Final = 4096

_OWN: Final = "universal."  # what entries of the state begin with that are not the aggregate's


def universal_step(aggregate: Aggregate, radius: float) -> Aggregate:
    """Replaces an aggregate's step by the ensemble's.

        g_t = w_t - merged_t,    w_t+1 = the ensemble's next decision, where |w - w_1| <= radius

    The length of gradients is unknown. As ``in_epochs`` does, the ensemble restarts from its
    current decision whenever a gradient exceeds the bound, which is twice the longest before, and
    takes shorter steps from then on. This compensates for too large a radius. (Clipping long
    gradients was tried, and does not: see benchmarks/NOTES.md.) But after an update of a thousand
    times the usual length models hardly move, so use a clip or a robust aggregate against such
    updates. The state consists of the ensemble's, in float64, the initial model, and the
    aggregate's: 57 vectors of the model's size.

    Args:
        aggregate: Merges the models of a round.
        radius: Radius of the ball around the initial model in which models stay; finite and > 0.
            The length of the first step is between a fifth and two fifths of it.

    Raises:
        ValueError: If ``radius`` is not positive.
    """
    require(0 < radius < np.inf, "server-radius", radius, "finite and positive")
    learner = lru_cache(partial(_learner, radius))

    def init(model: Params) -> Params:
        start = _flat(model)
        kept = learner(len(start)).init(None)
        return aggregate.init(model) | _saved(start, kept)

    def merge(model: Params, state: Params, updates: Sequence[Update]) -> tuple[Params, Params]:
        rest = {name: leaf for name, leaf in state.items() if not name.startswith(_OWN)}
        merged, rest = aggregate.merge(model, rest, updates)
        if not is_finite(merged):  # which is the caller's to judge
            return merged, state
        here = _flat(model)
        chosen = learner(len(here))
        start, kept = _restored(state, chosen)
        kept = chosen.observe(kept, here - _flat(merged))
        return _shaped(start + chosen.act(kept), model), rest | _saved(start, kept)

    return aggregate._replace(init=init, merge=merge)


def has_exp_concave(dim: int) -> bool:
    """Whether the ensemble for ``dim`` parameters has base learners for exp-concave losses.

    Each of these keeps two d x d matrices and solves with them: 8 MB for 13 learners with d = 200.
    Larger models would take longer than most clients take to train.
    """
    return dim <= MOST_EXP_CONCAVE


def _learner(radius: float, dim: int) -> Learner[Epoch[Universal]]:
    """Builds the learner of the displacement from the initial model."""
    domain, exp_concave = ball(dim, radius), has_exp_concave(dim)

    def make(horizon: int, gradient_bound: float) -> Learner[Universal]:
        return universal_ensemble(
            domain, horizon=horizon, gradient_bound=gradient_bound, exp_concave=exp_concave
        )

    return in_epochs(make, horizon=_HORIZON)


def _saved(start: Array, kept: Epoch[Universal]) -> Params:
    arrays = {"start": start, **to_arrays(kept)}
    return {_OWN + name: torch.from_numpy(array) for name, array in arrays.items()}


def _restored(state: Params, learner: Learner[Epoch[Universal]]) -> tuple[Array, Epoch[Universal]]:
    like = learner.init(None)
    # A file may have had them in another order.
    arrays = {name: state[_OWN + name].numpy() for name in to_arrays(like)}
    return state[_OWN + "start"].numpy(), from_arrays(like, arrays)


def _flat(model: Params) -> Array:
    """Returns all parameters as one vector, (d,), ordered by name: files may have another order."""
    leaves = [leaf.numpy(force=True).ravel() for _, leaf in sorted(model.items())]
    return np.concatenate(leaves).astype(np.float64)


def _shaped(vector: Array, like: Params) -> Params:
    """Returns a vector's numbers as parameters with the model's order and types."""
    sizes = [leaf.numel() for _, leaf in sorted(like.items())]
    parts = np.split(vector, np.cumsum(sizes)[:-1])
    found = {
        name: torch.from_numpy(part.copy()).to(like[name]).view_as(like[name])
        for name, part in zip(sorted(like), parts, strict=True)
    }
    return {name: found[name] for name in like}
