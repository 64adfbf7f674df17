"""One local round of a cohort: its inputs, its outcome, and two ways to run it.

``vmapped`` runs each step once for all clients, by ``torch.func.vmap``; ``each_in_turn`` runs all
steps of one client, then those of the next. They suit any network; ``dense_cohort`` is the
third way, for networks that end in dense layers. All three run the same rule and give the same
numbers, up to rounding. Everything that belongs to a client has a leading client axis.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from math import isfinite
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from engram.augmentations import Augmentation, augmented
from engram.cohort.task import ClientRaised
from engram.dense import FIRST, FirstLayerCoordinates
from engram.federated.parts import whose_turn
from engram.layout import channels_last
from engram.tree import is_finite
from engram.types import Batch, LocalRule, LossFn, Params, Scale
from federation.data.federated import Split

__all__ = [
    "ALL",
    "CohortModels",
    "CohortTask",
    "Draws",
    "LocalRound",
    "Rules",
    "each_in_turn",
    "vmapped",
]


Who = slice | Tensor  # some clients of a cohort: all of them, or those at these positions
ALL: Final = slice(None)


class Step(NamedTuple):
    """A step of some clients of a cohort.

    Attributes:
        who: The clients.
        batches: Inputs (c, k, ...), targets (c, k, ...), and keys (c,) if there are any.
        later: Whether the step belongs to the rule's second rule; see ``LocalRule.then``.
        last: Whether it is these clients' last step.
    """

    who: Who
    batches: tuple[Batch, ...]
    later: bool
    last: bool


class Draws(NamedTuple):
    """The rows that a cohort draws in a round.

    Attributes:
        split: The data that the rows are drawn from.
        rows: Row numbers, (c, n): the initial batch, then the batches of each step in turn.
        initial: Rows of the initial batch; 0 if the rule needs none.
        batches: Batches in a step.
        size: Rows in a batch.
        augment: The augmentation that changes rows at random; None if there is none.
        seeds: A seed for the augmentation of each row, (c, n); None without augmentation.
        keys: A key for each batch, (c, 1 + batches): the initial one, whether or not it is drawn,
            then those of each step in turn; None unless the network drops something at random.
        sizes: For each client and step, (c, steps), how many rows of a batch count; the others are
            padding. 0 where the client has fewer steps. None if all rows count.
        turns: The step at which each client's rule hands over to its second rule, (c,); None if
            there is no second rule.
    """

    split: Split
    rows: Tensor
    initial: int
    batches: int
    size: int
    augment: Augmentation | None = None
    seeds: Tensor | None = None
    keys: Tensor | None = None
    sizes: npt.NDArray[np.int64] | None = None
    turns: npt.NDArray[np.int64] | None = None

    @property
    def step_size(self) -> int:
        """Rows in a step."""
        return self.batches * self.size

    def of(self, i: int) -> Self:
        """Returns the draws of one client."""
        one = slice(i, i + 1)
        keys = None if self.keys is None else self.keys[one]
        sizes = None if self.sizes is None else self.sizes[one]
        seeds = None if self.seeds is None else self.seeds[one]
        turns = None if self.turns is None else self.turns[one]
        return self._replace(rows=self.rows[one], seeds=seeds, keys=keys, sizes=sizes, turns=turns)

    def take(
        self, who: Who, start: int, stop: int, out: Tensor | None = None
    ) -> tuple[Any, Tensor]:
        """Gathers some of the rows of some clients, as ``Split.take`` does, and changes them."""
        rows = self.rows[who, start:stop]
        if self.augment is None or self.seeds is None:
            return self.split.take(rows, out)
        x, y = self.split.take(rows)
        x = augmented(self.augment, x, self.seeds[who, start:stop])
        return (x if out is None else out.copy_(x.flatten(2))), y

    def steps(self) -> Iterator[Step]:
        """Gathers each step's batches; clients with batches of the same size share a ``Step``."""
        count = (self.rows.shape[1] - self.initial) // self.step_size
        for h in range(count):
            for who, size, later, last in self._alike(h, last=h + 1 == count):
                first = h * self.batches
                starts = (self.initial + (first + b) * self.size for b in range(self.batches))
                batches = (self._batch(who, at, size, first + b + 1) for b, at in enumerate(starts))
                yield Step(who, tuple(batches), later, last)

    def initial_batch(self) -> Batch | None:
        """Gathers the batch that memories start from; None if the rule needs none."""
        return self._batch(ALL, 0, self.initial, 0) if self.initial else None

    def later(self, h: int) -> bool:
        """Whether step h belongs to the second rule. All clients must have as many steps."""
        return self.turns is not None and h >= int(self.turns[0])

    def _alike(self, h: int, *, last: bool) -> Iterator[tuple[Who, int, bool, bool]]:
        """Groups clients that have a step h by batch size, by rule, and by whether it is last."""
        if self.sizes is None:
            yield ALL, self.size, self.later(h), last
            return
        final = (self.sizes > 0).sum(1) == h + 1
        later = np.zeros(len(final), dtype=bool) if self.turns is None else h >= self.turns
        kinds = self.sizes[:, h] * 4 + later * 2 + final
        for kind in np.unique(kinds[kinds > 3]).tolist():
            who = np.flatnonzero(kinds == kind)
            every = len(who) == len(kinds)
            some = ALL if every else torch.from_numpy(who).to(self.rows.device)
            yield some, kind // 4, kind // 2 % 2 == 1, kind % 2 == 1

    def _batch(self, who: Who, start: int, size: int, number: int) -> Batch:
        batch = self.take(who, start, start + size)
        return batch if self.keys is None else (*batch, self.keys[who, number])


class CohortTask(NamedTuple):
    """The inputs of a cohort's local round.

    Attributes:
        model: The common model w, without a client axis.
        memories: Each client's memory; None if it starts anew.
        draws: The rows that the cohort trains on.
        own: The clients' personal parameters, with a leading client axis. If the clients belong to
            several runs, this is the whole model.
        scales: Settings that differ between clients: by field of the method, one value of each
            client, (c,).
        losses: Whether their training losses are wanted, which take a forward pass of each.
    """

    model: Params
    memories: Sequence[Params | None]
    draws: Draws
    own: Params = {}  # noqa: RUF012 - a NamedTuple's default, which nobody changes
    scales: Params = {}  # noqa: RUF012 - as above
    losses: bool = True

    @property
    def start(self) -> Params:
        """The models that the clients start from, with a leading client axis."""
        count = len(self.memories)
        return {n: leaf.expand(count, *leaf.shape) for n, leaf in self.model.items()} | self.own


class CohortModels(NamedTuple):
    """Models of several clients, with the first layer in any coordinates.

    Attributes:
        leaves: The parameters, each with a leading client axis.
        coordinates: The coordinates of ``dense0.weight``, and of companions whose
            names end with it; None if the weights are held as they are.
    """

    leaves: Params
    coordinates: FirstLayerCoordinates | None = None

    def of(self, clients: list[int]) -> Self:
        """Returns the models of some clients, by position."""
        count = next((len(leaf) for leaf in self.leaves.values() if leaf.ndim), 0)
        if not count or clients == list(range(count)):
            return self
        leaves = {name: _of(leaf, clients) for name, leaf in self.leaves.items()}
        return self._replace(
            leaves=leaves, coordinates=self.coordinates and self.coordinates.of(clients)
        )

    def part(self, clients: slice, model: Params) -> Self:
        """Returns the models of clients that started from one model."""
        return self._replace(
            leaves={name: _of(leaf, clients) for name, leaf in self.leaves.items()},
            coordinates=self.coordinates and self.coordinates.part(clients, model.get(FIRST)),
        )

    def only(self, names: Set[str]) -> Self:
        """Returns the models with only the parameters of these names."""
        return self._replace(leaves={n: x for n, x in self.leaves.items() if n in names})

    def stack(self) -> Params:
        """Returns the models' parameters, with a leading client axis."""
        held = self.coordinates
        if held is None:
            return self.leaves
        return {n: held.weights(x) if n.endswith(FIRST) else x for n, x in self.leaves.items()}

    def mean(self, shares: Tensor) -> Params:
        """Returns the models' weighted mean; the shares (c,) add up to 1."""
        rest = {
            name: torch.tensordot(shares, leaf, dims=1)
            for name, leaf in self.leaves.items()
            if self.coordinates is None or name != FIRST
        }
        if self.coordinates is not None and FIRST in self.leaves:
            rest[FIRST] = self.coordinates.mean(self.leaves[FIRST], shares)
        return {name: rest[name] for name in self.leaves}


def _of(leaf: Tensor, clients: slice | list[int]) -> Tensor:
    return leaf[clients] if leaf.ndim else leaf  # all clients share a count of steps


class LocalRound(NamedTuple):
    """The outcome of a cohort's local round.

    Attributes:
        models: The clients' models.
        states: The states that their rules remember.
        losses: The losses of their models on the last batch, in nats; empty if not wanted.
        broken: Clients whose model or loss became non-finite: by position, the step at which it
            happened (from 1; 0 if it is not known).
    """

    models: CohortModels
    states: CohortModels
    losses: list[float]
    broken: dict[int, int]


Statistics = Callable[..., Params]  # see ``engram.models.Model``
Rules = Callable[[Mapping[str, Scale]], LocalRule]
"""Builds the rule with some of the method's settings in place of its own: see ``CohortTask``."""


def vmapped(
    rules: Rules, loss: LossFn, task: CohortTask, *, statistics: Statistics | None = None
) -> LocalRound:
    """Runs each step once for all clients.

    Args:
        rules: Builds the rule, on ``loss``.
        loss: Mean loss of a batch, by the model that is reported.
        task: What to do.
        statistics: Running statistics after each step: of its last batch, by the model before it.
    """
    count, w, scales = len(task.memories), task.start, task.scales

    def init(own: Params, w: Params, batch: Batch | None) -> Params:
        return rules(own).init(w, batch)

    def take_step(later: bool, own: Params, *state: Any) -> tuple[Params, Params]:
        return whose_turn(rules(own), later=later).step(*state)

    def end(own: Params, w: Params, u: Params) -> Params:
        finish = rules(own).finish
        return w if finish is None else finish(w, u)

    initial = task.draws.initial_batch()
    finishes = rules({}).finish is not None
    u = vmap(init, in_dims=(0, 0, None if initial is None else 0))(scales, w, initial)
    if any(memory is not None for memory in task.memories):
        u = _stack([_pick(u, i) | (memory or {}) for i, memory in enumerate(task.memories)])
    update = vmap(statistics) if statistics else None
    losses = next(iter(w.values())).new_zeros(count)
    for who, batches, later, last in task.draws.steps():
        before, step = _pick(w, who), vmap(partial(take_step, later))
        own, state = step(_pick(scales, who), before, _pick(u, who), batches)
        if update is not None:
            own = own | update(before, *_seen(batches))
        if last and finishes:
            own = vmap(end)(_pick(scales, who), own, state)
        w, u = _put(w, who, own), _put(u, who, state)
        if last and task.losses:
            losses[who] = vmap(loss)(own, batches[-1])
    finite = vmap(is_finite)(w) & losses.isfinite()
    broken = {i: 0 for i, fine in enumerate(finite.tolist()) if not fine}
    found = losses.tolist() if task.losses else []
    return LocalRound(CohortModels(w), CohortModels(u), found, broken)


def each_in_turn(
    rules: Rules, loss: LossFn, task: CohortTask, *, statistics: Statistics | None = None
) -> LocalRound:
    """Runs all steps of one client, then those of the next.

    Args:
        rules: Builds the rule, on ``loss``.
        loss: Mean loss of a batch.
        task: What to do.
        statistics: As for ``vmapped``.

    Raises:
        ClientRaised: A client's step raised an error; says which client and which step.
    """
    common = {name: channels_last(leaf) for name, leaf in task.model.items()}
    models, states, losses, broken = [], [], list[float](), {}
    for i, memory in enumerate(task.memories):
        h, draws = 0, task.draws.of(i)
        rule = rules({name: float(column[i]) for name, column in task.scales.items()})
        try:
            w = common | {name: channels_last(leaf[i]) for name, leaf in task.own.items()}
            u = rule.init(w, _only(draws.initial_batch())) | (memory or {})
            start = w, u
            batches: tuple[Batch, ...] = ()
            for h, step in enumerate(draws.steps(), start=1):  # noqa: B007 - the handler needs it
                batches = _only(step.batches)
                before = w
                w, u = whose_turn(rule, later=step.later).step(before, u, batches)
                if statistics is not None:
                    w = w | statistics(before, *_seen(batches))
            if rule.finish is not None:
                w = rule.finish(w, u)
            if task.losses:
                losses.append(float(loss(w, batches[-1])))
        except Exception as error:  # a user's rule may raise anything, which becomes the cause
            raise ClientRaised(i, h) from error
        if not (is_finite(w) and all(map(isfinite, losses[i:]))):
            broken[i] = _first_broken(rule, *start, draws)
        models.append(w)
        states.append(u)
    return LocalRound(CohortModels(_stack(models)), CohortModels(_stack(states)), losses, broken)


def _seen(batches: tuple[Batch, ...]) -> tuple[Any, ...]:
    """Returns the network's part of the last batch: inputs, and the key if there is one."""
    inputs, _, *key = batches[-1]
    return inputs, *key


def _first_broken(rule: LocalRule, w: Params, u: Params, draws: Draws) -> int:
    """Returns the first step after which the model is not finite; the last if only the loss is."""
    number = 0
    for step in draws.steps():
        w, u = whose_turn(rule, later=step.later).step(w, u, _only(step.batches))
        number += 1
        if not is_finite(w):
            break
    return number


def _pick(tree: Params, who: int | Who) -> Params:
    return tree if who is ALL else {name: leaf[who] for name, leaf in tree.items()}


def _put(tree: Params, who: Who, some: Params) -> Params:
    """Returns a tree in which some clients' leaves are replaced by ``some``."""
    if isinstance(who, slice):
        return some
    return {name: leaf.index_copy(0, who, some[name]) for name, leaf in tree.items()}


def _only(stacked: Any) -> Any:
    """Returns the single client's entry; None if there is none."""
    return None if stacked is None else tree_map(lambda leaf: channels_last(leaf[0]), stacked)


def _stack(trees: Sequence[Params]) -> Params:
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}
