"""The universal ensemble as a server's step: rounds of a federation as rounds of online learning.

The model w_t of round t is a decision, and w_t minus the merged model of the round counts as the
gradient of the round's loss at w_t. If each client takes one step of gradient descent, it is this
gradient times the clients' step size; and scaling all gradients by a number changes no decision. So
neither the clients' nor the server's step size is tuned; only a radius is chosen.

The length of gradients is unknown (``in_epochs``): whenever one exceeds the bound that a learner
was built for, a new learner is built for twice its length, and continues from the last decision.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np
import torch

from engram.core.arrays import Array
from engram.core.checks import require
from engram.core.method import FromMean, Method, Slots, Update
from engram.core.slots import pick
from engram.core.tree import is_finite
from engram.core.types import Params
from engram.online.domains import ball
from engram.online.learner import Learner, checked
from engram.online.state_arrays import from_arrays, to_arrays
from engram.online.universal import Universal, universal_ensemble

MOST_EXP_CONCAVE: Final = 200
"""Parameters with which a model may have base learners for exp-concave losses."""

# T, regardless of the number of rounds: a run may be resumed for more. There are log2 T learners of
# a kind, so that too long a horizon costs little. Restarting to double it would spoil the model for
# many rounds each time (benchmarks/NOTES.md).
_HORIZON: Final = 4096

_SLOT: Final = "universal"


S = TypeVar("S")


class Epoch(NamedTuple, Generic[S]):
    """State of a learner in epochs."""

    state: S  # state of this epoch's learner
    horizon: int  # number of rounds T that each learner was built for
    rounds: int  # number of rounds of this epoch
    bound: float  # G that the learner was built for; 0 as long as all gradients were 0
    number: int  # number of epochs so far, this one included


def in_epochs(make: Callable[[int, float], Learner[S]], horizon: int) -> Learner[Epoch[S]]:
    """Builds a learner that need not know G, from ``(T, G) -> learner``.

    Compared with a learner that knows G, regret grows by a constant factor if it is a power of T,
    and by the number of epochs if it is of order log T.
    """
    made = lru_cache(maxsize=4)(partial(make, horizon))

    def learner(kept: Epoch[S]) -> Learner[S]:
        return made(kept.bound or 1.0)

    def observe(kept: Epoch[S], gradients: Array) -> Epoch[S]:
        given = checked(gradients, np.shape(gradients))
        longest = float(np.sqrt(np.max(np.sum(given * given, axis=-1))))
        if longest > kept.bound:
            number = kept.number + (kept.rounds > 0)  # else nothing is lost by starting over
            state = made(2 * longest).init(learner(kept).act(kept.state))
            kept = Epoch(state, horizon, 0, 2 * longest, number)
        state = learner(kept).observe(kept.state, gradients)
        return kept._replace(state=state, rounds=kept.rounds + (kept.bound > 0))

    return Learner(
        dim=made(1.0).dim,
        init=lambda start: Epoch(made(1.0).init(start), horizon, 0, 0.0, 1),
        act=lambda kept: learner(kept).act(kept.state),
        observe=observe,
        points=lambda kept: learner(kept).points(kept.state),
    )


def universal_step(method: Method, radius: float, running: frozenset[str] = frozenset()) -> Method:
    """Replaces the server's step of a method by the ensemble's.

        g_t = w_t - merged_t,    w_t+1 = the ensemble's next decision, where |w - w_1| <= radius

    The length of gradients is unknown. As ``in_epochs`` does, the ensemble restarts from its
    current decision whenever a gradient exceeds the bound, which is twice the longest before, and
    takes shorter steps from then on. This compensates for too large a radius. (Clipping long
    gradients was tried, and does not: see benchmarks/NOTES.md.) But after an update of a thousand
    times the usual length models hardly move, so use a clip or a robust merge against such updates.
    The slot ``universal`` has the ensemble's state, in float64, and the initial model: 57 vectors
    of the model's size.

    Args:
        method: Its server merges models, in a slot ``model``, and takes no step of its own.
        radius: Radius of the ball around the initial model in which models stay; finite and > 0.
            The length of the first step is between a fifth and two fifths of it.
        running: Names of running statistics, which are averaged.

    Raises:
        ValueError: If ``radius`` is not positive, or the server merges no model.
    """
    require(0 < radius < np.inf, "server-radius", radius, "finite and positive")
    merge, start = method.server.merge, method.server.start.get("model")
    if not isinstance(merge, FromMean) or not start:
        raise ValueError("server-step must be replace for a method whose server merges no model")
    learned = start.keys() - running
    first = _flat(pick(start, learned))
    learner = lru_cache(partial(_learner, radius))

    def stepped(server: Slots, mean: Update) -> Slots:
        rest = {slot: x for slot, x in server.items() if slot != _SLOT}
        found = merge.merge(rest, mean)
        here, there = pick(server["model"], learned), pick(found["model"], learned)
        if not is_finite(there):  # which is the caller's to judge
            return found | {_SLOT: server[_SLOT]}
        chosen = learner(len(first))
        begun, kept = _restored(server[_SLOT], chosen)
        kept = chosen.observe(kept, _flat(here) - _flat(there))
        model = found["model"] | _shaped(begun + chosen.act(kept), here)
        return found | {"model": model, _SLOT: _saved(begun, kept)}

    state = _saved(first, learner(len(first)).init(None))
    server = method.server._replace(
        start={**method.server.start, _SLOT: state}, merge=merge._replace(merge=stepped)
    )
    return method._replace(server=server, kinds={**method.kinds, _SLOT: "statistic"})


def has_exp_concave(dim: int) -> bool:
    """Whether the ensemble for ``dim`` parameters has base learners for exp-concave losses.

    Each of these keeps two d x d matrices and solves with them: 8 MB for 13 learners with d = 200.
    Larger models would take longer than most clients take to train.
    """
    return dim <= MOST_EXP_CONCAVE


def _learner(radius: float, dim: int) -> Learner[Epoch[Universal]]:
    domain, exp_concave = ball(dim, radius), has_exp_concave(dim)

    def make(horizon: int, gradient_bound: float) -> Learner[Universal]:
        return universal_ensemble(
            domain, horizon=horizon, gradient_bound=gradient_bound, exp_concave=exp_concave
        )

    return in_epochs(make, _HORIZON)


def _saved(start: Array, kept: Epoch[Universal]) -> Params:
    arrays = {"start": start, **to_arrays(kept)}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _restored(state: Params, learner: Learner[Epoch[Universal]]) -> tuple[Array, Epoch[Universal]]:
    like = learner.init(None)
    # A file may have had them in another order.
    arrays = {name: state[name].numpy() for name in to_arrays(like)}
    return state["start"].numpy(), from_arrays(like, arrays)


def _flat(model: Params) -> Array:
    """Returns all parameters as one vector, (d,), ordered by name: files may have another order."""
    leaves = [leaf.numpy(force=True).ravel() for _, leaf in sorted(model.items())]
    return np.concatenate(leaves).astype(np.float64)


def _shaped(vector: Array, like: Params) -> Params:
    sizes = [leaf.numel() for _, leaf in sorted(like.items())]
    parts = np.split(vector, np.cumsum(sizes)[:-1])
    found = {
        name: torch.from_numpy(part.copy()).to(like[name]).view_as(like[name])
        for name, part in zip(sorted(like), parts, strict=True)
    }
    return {name: found[name] for name in like}
