"""One local round of a cohort: its inputs, its outcome, and two ways to run it.

``vmapped`` runs each step once for all clients, by ``torch.func.vmap``; ``each_in_turn`` runs all
steps of one client, then those of the next. They suit any network; ``dense_cohort`` is the
third way, for those that end in dense layers. All run the same rule and give the same numbers, but
for rounding. Everything that belongs to a client has a leading client axis.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from engram.dense import FIRST, FirstLayerCoordinates
from engram.models.base import Inputs
from engram.tree import is_finite
from engram.types import Batch, LocalRule, LossFn, Params
from federation.data.federated import Split

__all__ = [
    "ClientRaised",
    "CohortModels",
    "CohortTask",
    "Draws",
    "LocalRound",
    "each_in_turn",
    "vmapped",
]


class Draws(NamedTuple):
    """The rows that a cohort draws in a round.

    Attributes:
        split: What they are rows of.
        rows: Their numbers, (c, n): the initial batch, then the batches of each step in turn.
        initial: Rows of the initial batch; 0 if the rule needs none.
        batches: Batches in a step.
        size: Rows in a batch.
        keys: A key for each batch, (c, 1 + batches): the initial one, whether or not it is drawn,
            then those of each step in turn; None unless the network drops something at random.
    """

    split: Split
    rows: Tensor
    initial: int
    batches: int
    size: int
    keys: Tensor | None = None

    @property
    def step_size(self) -> int:
        """Rows in a step."""
        return self.batches * self.size

    def steps(self) -> Iterator[tuple[Batch, ...]]:
        """Gathers each step's batches: inputs (c, k, ...), targets (c, k, ...), keys (c,)."""
        drawn = range(self.initial, self.rows.shape[1], self.size)
        batches = (self._batch(at, self.size, number) for number, at in enumerate(drawn, start=1))
        yield from zip(*[batches] * self.batches, strict=True)

    def initial_batch(self) -> Batch | None:
        """Gathers the batch that memories start from, if there is one."""
        return self._batch(0, self.initial, 0) if self.initial else None

    def _batch(self, start: int, size: int, number: int) -> Batch:
        batch = self.split.take(self.rows[:, start : start + size])
        return batch if self.keys is None else (*batch, self.keys[:, number])


class CohortTask(NamedTuple):
    """What a cohort is to do.

    Attributes:
        model: The common model w, without a client axis.
        memories: For each client the memory it kept, or None: it starts anew.
        draws: Its rows.
    """

    model: Params
    memories: Sequence[Params | None]
    draws: Draws


class CohortModels(NamedTuple):
    """Models of several clients, with the first layer in any coordinates.

    Attributes:
        leaves: The parameters, each with a leading client axis.
        coordinates: The coordinates of ``dense0.weight``; None for the weight itself.
    """

    leaves: Params
    coordinates: FirstLayerCoordinates | None = None

    def of(self, clients: list[int]) -> Self:
        """Returns the models of some clients, by position."""
        count = len(next(iter(self.leaves.values())))
        if clients == list(range(count)):
            return self
        leaves = {name: leaf[clients] for name, leaf in self.leaves.items()}
        return self._replace(
            leaves=leaves, coordinates=self.coordinates and self.coordinates.of(clients)
        )

    def stack(self) -> Params:
        """Returns the models as they are, with a leading client axis."""
        if self.coordinates is None:
            return self.leaves
        return self.leaves | {FIRST: self.coordinates.weights(self.leaves[FIRST])}

    def mean(self, shares: Tensor) -> Params:
        """Returns their mean; the shares (c,) add up to 1."""
        rest = {
            name: torch.tensordot(shares, leaf, dims=1)
            for name, leaf in self.leaves.items()
            if self.coordinates is None or name != FIRST
        }
        if self.coordinates is not None:
            rest[FIRST] = self.coordinates.mean(self.leaves[FIRST], shares)
        return {name: rest[name] for name in self.leaves}


class LocalRound(NamedTuple):
    """What came of it.

    Attributes:
        models: The clients' models.
        states: What their rules remember.
        losses: The losses of their models on the last batch, in nats.
        broken: Where a client's model or loss became non-finite: by its position, the step
            (from 1; 0 if that is not known).
    """

    models: CohortModels
    states: CohortModels
    losses: list[float]
    broken: dict[int, int]


class ClientRaised(Exception):
    """A client's local round raised an error, which is the cause of this one.

    Attributes:
        position: Which client of the cohort.
        step: In which local step, from 1; 0 if before the first.
    """

    def __init__(self, position: int, step: int) -> None:
        super().__init__(f"client at position {position}, step {step}")
        self.position, self.step = position, step


Statistics = Callable[[Params, Inputs], Params]  # see ``engram.models.Model``


def vmapped(
    rule: LocalRule, loss: LossFn, task: CohortTask, *, statistics: Statistics | None = None
) -> LocalRound:
    """Runs each step once for all clients.

    Args:
        rule: The rule, built on ``loss``.
        loss: Mean loss of a batch.
        task: What to do.
        statistics: Updates running statistics, after each step, by its last batch.
    """
    count = len(task.memories)
    w = {name: leaf.expand(count, *leaf.shape) for name, leaf in task.model.items()}
    initial = task.draws.initial_batch()
    u = vmap(rule.init, in_dims=(0, None if initial is None else 0))(w, initial)
    if any(memory is not None for memory in task.memories):
        u = _stack([memory or _pick(u, i) for i, memory in enumerate(task.memories)])
    step, update = vmap(rule.step), vmap(statistics) if statistics else None
    batches: tuple[Batch, ...] = ()
    for batches in task.draws.steps():
        w, u = step(w, u, batches)
        if update is not None:
            w = update(w, batches[-1][0])
    losses = vmap(loss)(w, batches[-1])
    finite = vmap(is_finite)(w) & losses.isfinite()
    broken = {i: 0 for i, fine in enumerate(finite.tolist()) if not fine}
    return LocalRound(CohortModels(w), CohortModels(u), losses.tolist(), broken)


def each_in_turn(
    rule: LocalRule, loss: LossFn, task: CohortTask, *, statistics: Statistics | None = None
) -> LocalRound:
    """Runs all steps of one client, then those of the next.

    Args:
        rule: The rule, built on ``loss``.
        loss: Mean loss of a batch.
        task: What to do.
        statistics: As for ``vmapped``.

    Raises:
        ClientRaised: A client's step raised; it says whose, and which.
    """
    initial, steps = task.draws.initial_batch(), list(task.draws.steps())
    common = {name: _images(leaf) for name, leaf in task.model.items()}
    models, states, losses, broken = [], [], [], {}
    for i, memory in enumerate(task.memories):
        h = 0
        try:
            first = None if initial is None else _slice(initial, i)
            w, u = common, rule.init(common, first)
            u = memory or u
            start = w, u
            for h, batches in enumerate(steps, start=1):  # noqa: B007 - the handler below needs it
                own = tuple(_slice(batch, i) for batch in batches)
                w, u = rule.step(w, u, own)
                if statistics is not None:
                    w = statistics(w, own[-1][0])
            value = loss(w, _slice(steps[-1][-1], i))
        except Exception as error:  # a rule may be anybody's; its error is the cause of ours
            raise ClientRaised(i, h) from error
        if not (is_finite(w) and value.isfinite()):
            broken[i] = _first_broken(rule, *start, [[_slice(b, i) for b in bs] for bs in steps])
        models.append(w)
        states.append(u)
        losses.append(float(value))
    return LocalRound(CohortModels(_stack(models)), CohortModels(_stack(states)), losses, broken)


def _first_broken(rule: LocalRule, w: Params, u: Params, steps: Sequence[Sequence[Batch]]) -> int:
    """Returns the first step after which the model is not finite; the last if only its loss."""
    for h, batches in enumerate(steps, start=1):
        w, u = rule.step(w, u, tuple(batches))
        if not is_finite(w):
            return h
    return len(steps)


def _pick(tree: Params, i: int) -> Params:
    return {name: leaf[i] for name, leaf in tree.items()}


def _slice(batch: Batch, i: int) -> Batch:
    return tree_map(lambda leaf: _images(leaf[i]), batch)


def _images(leaf: Tensor) -> Tensor:
    # In this order CPUs pool ten times as fast, and nothing is slower.
    return leaf.contiguous(memory_format=torch.channels_last) if leaf.ndim == 4 else leaf


def _stack(trees: Sequence[Params]) -> Params:
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}
