"""Aggregation of a round's updates into the next model, as pure functions on explicit state."""

from collections.abc import Callable, Sequence, Set
from typing import Literal, NamedTuple

from engram.checks import require
from engram.tree import add_scaled, interpolate
from engram.types import Params

__all__ = [
    "Aggregate",
    "Update",
    "Weighting",
    "averaging",
    "mean",
    "mixed_mean",
    "sent",
    "weighted_mean",
]

Weighting = Literal["clients", "examples"]


class Update(NamedTuple):
    """A trained model and its weight.

    Attributes:
        params: One client's model; or, if the aggregate is additive, the weighted mean of several
            clients that a node trained together.
        weight: Number of clients or examples that it stands for, according to the aggregate's
            ``weighting``; > 0.
        client: Whose it is; -1 for several clients'.
    """

    params: Params
    weight: float
    client: int = -1


class Aggregate(NamedTuple):
    """The server's part of a federated algorithm.

    Attributes:
        init: ``model -> state``: the server's state before the first round, a dictionary of
            tensors (empty for most aggregates) that is stored in checkpoints.
        merge: ``(model, state, updates) -> (model, state)``.
        weighting: Whether an update's weight counts clients or examples.
        additive: Whether replacing updates by their weighted mean leaves the result unchanged. A
            node that trained several clients then sends one model.
        bounded: Whether ``merge`` itself bounds the influence of a single update, however far it
            lies from the others. If not, the caller should leave out such updates.
        means: Whether every array becomes a mean of updates' ones, so that ``averaging`` has
            nothing to add.
        tailored: ``(model, state, clients) -> arrays``: the arrays that the server makes for each
            of these clients, with a leading client axis, which take the place of the model's; None
            if all clients are sent the same.
        statistics: Names of running statistics, which are no parameters; see ``averaging``.
    """

    init: Callable[[Params], Params]
    merge: Callable[[Params, Params, Sequence[Update]], tuple[Params, Params]]
    weighting: Weighting
    additive: bool
    bounded: bool = False
    means: bool = False
    tailored: Callable[[Params, Params, Sequence[int]], Params] | None = None
    statistics: Set[str] = frozenset()


def sent(
    aggregate: Aggregate, model: Params, state: Params, clients: Sequence[int]
) -> tuple[Params, Params]:
    """Returns what some clients are sent: the arrays that they share, and each one's own."""
    if aggregate.tailored is None:
        return model, {}
    own = aggregate.tailored(model, state, clients)
    return {name: leaf for name, leaf in model.items() if name not in own}, own


def weighted_mean(updates: Sequence[Update]) -> Params:
    """Returns the weighted mean of the models.

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


def averaging(
    aggregate: Aggregate,
    names: Set[str],
    center: Callable[[Sequence[Update]], Params] = weighted_mean,
) -> Aggregate:
    """Returns an aggregate that averages running statistics, and merges the others as before.

    Statistics are no parameters: a bound on an update's norm does not count them, and no noise and
    no step of a server's optimizer moves them, which might make a variance negative.

    Args:
        aggregate: Merges all but them.
        names: Their names. Those that the model lacks are passed over.
        center: Their average, by which those of one client may have any influence if it is the
            mean.
    """
    if not names or aggregate.means:
        return aggregate._replace(statistics=names)

    def some(params: Params, *, averaged: bool) -> Params:
        return {name: leaf for name, leaf in params.items() if (name in names) == averaged}

    def init(model: Params) -> Params:
        return aggregate.init(some(model, averaged=False))

    def merge(model: Params, state: Params, updates: Sequence[Update]) -> tuple[Params, Params]:
        plain, rest = (
            [u._replace(params=some(u.params, averaged=which)) for u in updates]
            for which in (True, False)
        )
        merged, state = aggregate.merge(some(model, averaged=False), state, rest)
        merged |= center(plain)
        return {name: merged[name] for name in model}, state

    def tailored(model: Params, state: Params, clients: Sequence[int]) -> Params:
        assert aggregate.tailored is not None  # for mypy: it is asked for below
        return aggregate.tailored(some(model, averaged=False), state, clients)

    own = aggregate.tailored and tailored
    bounded = aggregate.bounded and center is not weighted_mean
    return aggregate._replace(
        init=init, merge=merge, tailored=own, statistics=names, bounded=bounded
    )
