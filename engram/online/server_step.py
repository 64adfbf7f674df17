"""Rounds of a federation as rounds of online learning: the universal ensemble as a server's step.

The model w_t of round t is a decision, and w_t less what the round's models were merged into is
taken for the gradient of the round's loss there. Where each client takes one step of gradient
descent, that is what it is, times their step size; and scaling all gradients by a number changes no
decision. So neither the clients' step size nor a server's is tuned here, but a radius is chosen.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from engram.aggregates import Aggregate, Update
from engram.checks import require
from engram.online.domains import ball
from engram.online.epochs import Epoch, in_epochs
from engram.online.learner import Learner
from engram.online.universal import Universal, universal_ensemble
from engram.states import from_arrays, to_arrays
from engram.tree import is_finite
from engram.types import Params

__all__ = ["MOST_EXP_CONCAVE", "has_exp_concave", "universal_step"]

Array = npt.NDArray[np.float64]

MOST_EXP_CONCAVE: Final = 200
"""Parameters with which a model may have base learners for exp-concave losses."""

# T, whatever the number of rounds is: a run may be resumed for more. There are log2 T learners of a
# kind, so that too long a horizon costs little. Starting over now and then, to double it, spoils
# the model for many rounds each time (benchmarks/NOTES.md).
_HORIZON: Final = 4096

_OWN: Final = "universal."  # what entries of the state begin with that are not the aggregate's


def universal_step(aggregate: Aggregate, radius: float) -> Aggregate:
    """Replaces an aggregate's step by the ensemble's.

        g_t = w_t - merged_t,    w_t+1 = the ensemble's next decision, where |w - w_1| <= radius

    How long gradients are is not known: as ``in_epochs`` says, the ensemble starts over, from where
    it is, each time that one is longer than twice the longest before, and all later steps are the
    shorter for it. That makes up for too large a radius. (To cut long gradients was tried, and does
    not: see benchmarks/NOTES.md.) But after an update of a thousand times the usual length models
    hardly move, so a clip or a robust aggregate should keep such a thing away. The state is its
    own, in float64, the initial model, and the aggregate's: 57 vectors of the model's size.

    Args:
        aggregate: Whose model a round's are merged into.
        radius: Of the ball around the initial model that models stay in; finite and > 0. The
            first step has between a fifth and two fifths of its length.

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
    """Whether the ensemble of a model of so many parameters learns from exp-concave losses, too.

    Base learners for these keep two matrices each, d x d, and solve with them: with d = 200 and
    13 of them 8 MB, and more would take longer than most clients take to train.
    """
    return dim <= MOST_EXP_CONCAVE


def _learner(radius: float, dim: int) -> Learner[Epoch[Universal]]:
    """Decides how far from the initial model to go."""
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
    """Returns all parameters as one vector, (d,), ordered by name, as a file may not have them."""
    leaves = [leaf.numpy(force=True).ravel() for _, leaf in sorted(model.items())]
    return np.concatenate(leaves).astype(np.float64)


def _shaped(vector: Array, like: Params) -> Params:
    """Returns a vector's numbers as the model's parameters, in its order and types."""
    sizes = [leaf.numel() for _, leaf in sorted(like.items())]
    parts = np.split(vector, np.cumsum(sizes)[:-1])
    found = {
        name: torch.from_numpy(part.copy()).to(like[name]).view_as(like[name])
        for name, part in zip(sorted(like), parts, strict=True)
    }
    return {name: found[name] for name in like}
