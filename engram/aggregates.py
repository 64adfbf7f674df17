"""How the updates of a round become the next model: pure functions over explicit state."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from engram.checks import require
from engram.tree import add_scaled, interpolate
from engram.types import Params

__all__ = ["Aggregate", "Update", "Weighting", "mean", "mixed_mean", "weighted_mean"]

Weighting = Literal["clients", "examples"]


class Update(NamedTuple):
    """A model that came back from training, and the weight that stands behind it.

    Attributes:
        params: One client's model; or the weighted mean over several, where the aggregate
            is additive and a node trained them together.
        weight: Clients or examples behind it, as the aggregate's ``weighting`` says; > 0.
    """

    params: Params
    weight: float


class Aggregate(NamedTuple):
    """The server's share of a federated algorithm.

    Attributes:
        init: ``model -> state``: what the server remembers before the first round; the
            state is a dictionary of tensors (empty for most) and is kept in checkpoints.
        merge: ``(model, state, updates) -> (model, state)``.
        weighting: What an update's weight counts.
        additive: Whether updates may be replaced by their weighted mean beforehand, without
            changing the result. A node that trained several clients then sends one model.
        bounded: Whether ``merge`` itself bounds what any one update does, however far it lies
            from the others. If not, its caller had better leave such updates out.
    """

    init: Callable[[Params], Params]
    merge: Callable[[Params, Params, Sequence[Update]], tuple[Params, Params]]
    weighting: Weighting
    additive: bool
    bounded: bool = False


def weighted_mean(updates: Sequence[Update]) -> Params:
    """Returns the mean of the models, each counted by its weight.

    Raises:
        ValueError: If there are no updates, or the sum of their weights is not positive.
    """
    total = sum(update.weight for update in updates)
    require(total > 0, "the updates' total weight", total, "positive")
    first, *rest = updates
    result = {name: leaf * (first.weight / total) for name, leaf in first.params.items()}
    for update in rest:
        result = add_scaled(result, update.weight / total, update.params)
    return result


def mixed_mean(mix: float, weighting: Weighting = "clients") -> Aggregate:
    """Builds ``model <- (1 - mix) model + mix * mean``, pFedMe's server step.

    Args:
        mix: Weight beta_s of the round's mean; > 0. 1 is the plain mean, above 1 overshoots.
        weighting: Whether the mean counts clients or their examples.

    Raises:
        ValueError: If ``mix`` is not positive.
    """
    require(mix > 0, "server-mix", mix, "positive")

    def init(model: Params) -> Params:
        del model
        return {}

    def merge(model: Params, state: Params, updates: Sequence[Update]) -> tuple[Params, Params]:
        return interpolate(model, weighted_mean(updates), mix), state

    return Aggregate(init=init, merge=merge, weighting=weighting, additive=True)


def mean(weighting: Weighting = "clients") -> Aggregate:
    """Builds the mean over clients (Alg. 3, line 16 of LocalMOML) or examples (FedAvg)."""
    return mixed_mean(1.0, weighting)
