"""One local round of a cohort: all its clients at once, or one after the other.

Both run the same pure functions of a rule and give the same numbers, but for rounding. Everything
that belongs to a client has a leading client axis: its initial batch (c, K0, ...), the batches of
each step (c, K, ...), and what comes out.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch.func import vmap

from engram.tree import is_finite
from engram.types import Batch, LocalRule, LossFn, Params

__all__ = ["ClientRaised", "LocalRound", "Task", "each_in_turn", "stacked"]


class Task(NamedTuple):
    """What a cohort is to do.

    Attributes:
        model: The common model w, without a client axis.
        initial: Batches that memories start from; None if the rule needs none.
        memories: For each client the memory it kept, or None: it starts anew.
        steps: The batches of each local step, one tuple a step, made as they are asked for.
    """

    model: Params
    initial: Batch | None
    memories: Sequence[Params | None]
    steps: Iterable[tuple[Batch, ...]]


class LocalRound(NamedTuple):
    """What came of it, each with a leading client axis.

    Attributes:
        models: The clients' models.
        states: What their rules remember.
        losses: The losses of their models on the last batch, in nats.
        broken: Where a client's model or loss became non-finite: by its position, the step
            (from 1; 0 if that is not known).
    """

    models: Params
    states: Params
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


def stacked(rule: LocalRule, loss: LossFn, task: Task) -> LocalRound:
    """Runs each step once for all clients."""
    count = len(task.memories)
    w = {name: leaf.expand(count, *leaf.shape) for name, leaf in task.model.items()}
    u = vmap(rule.init, in_dims=(0, None if task.initial is None else 0))(w, task.initial)
    if any(memory is not None for memory in task.memories):
        u = _stack([memory or pick(u, i) for i, memory in enumerate(task.memories)])
    step = vmap(rule.step)
    batches: tuple[Batch, ...] = ()
    for batches in task.steps:
        w, u = step(w, u, batches)
    losses = vmap(loss)(w, batches[-1])
    finite = vmap(is_finite)(w) & losses.isfinite()
    broken = {i: 0 for i, fine in enumerate(finite.tolist()) if not fine}
    return LocalRound(w, u, losses.tolist(), broken)


def each_in_turn(rule: LocalRule, loss: LossFn, task: Task) -> LocalRound:
    """Runs all steps of one client, then those of the next.

    Raises:
        ClientRaised: A client's step raised; it says whose, and which.
    """
    steps = list(task.steps)
    models, states, losses, broken = [], [], [], {}
    for i, memory in enumerate(task.memories):
        h = 0
        try:
            first = None if task.initial is None else _slice(task.initial, i)
            w, u = task.model, rule.init(task.model, first)
            u = memory or u
            for h, batches in enumerate(steps, start=1):
                w, u = rule.step(w, u, tuple(_slice(batch, i) for batch in batches))
                if i not in broken and not is_finite(w):
                    broken[i] = h
            value = loss(w, _slice(steps[-1][-1], i))
        except Exception as error:  # a rule may be anybody's; its error is the cause of ours
            raise ClientRaised(i, h) from error
        if not value.isfinite():
            broken.setdefault(i, h)
        models.append(w)
        states.append(u)
        losses.append(float(value))
    return LocalRound(_stack(models), _stack(states), losses, broken)


def pick(tree: Params, i: int) -> Params:
    """Returns one client's slice of stacked parameters."""
    return {name: leaf[i] for name, leaf in tree.items()}


def _slice(batch: Batch, i: int) -> Batch:
    return batch[0][i], batch[1][i]


def _stack(trees: Sequence[Params]) -> Params:
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}
