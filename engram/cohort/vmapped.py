"""Each step once for all clients, by ``torch.func.vmap``."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_map

from engram.cohort.draws import ALL, Who
from engram.cohort.round import Cohort, Held, Outcome, Problem
from engram.core.method import Slots
from engram.core.slot_optimizers import State
from engram.core.tree import is_finite, repeated, select
from engram.core.types import Batch, Params


def at_once(problem: Problem, cohort: Cohort) -> Outcome:
    """Trains a cohort's clients together, under ``vmap``."""
    build, scales, count = problem.build, cohort.scales, cohort.clients
    phases = build({}).client.phases
    device = cohort.draws.rows.device

    def begin(scale: Params, own: Slots, kept: Slots, batch: Batch | None) -> Slots:
        return build(scale).client.begin(cohort.common | own, kept, batch)

    def take(number: int, scale: Params, *state: Any) -> tuple[Slots, State]:
        return problem.take(build(scale).client.phases[number], *state)

    def end(scale: Params, own: Slots, work: Slots) -> tuple[Slots, Slots]:
        return build(scale).client.end(cohort.common | own, work)

    def loss(scale: Params, own: Slots, sent: Slots, kept: Slots, batch: Batch) -> Tensor:
        served = build(scale).serve(cohort.common | own | sent, kept, True)
        return problem.reported(served, batch)

    # A method that is built of scales draws again what its server starts from.
    each = partial(_stacked, count=count, randomness="same" if scales else "error")
    initial = cohort.draws.initial_batch()
    work = each(begin, scales, cohort.own, cohort.kept, initial)
    states: list[State] = list(cohort.states) or [{} for _ in phases]
    losses = torch.zeros(count, device=device)
    last: list[tuple[Who, Batch]] = []
    for who, batches, number, final in cohort.draws.each_step():
        before = _pick((scales, work, states[number]), who)
        moved, state = each(partial(take, number), *before, batches)
        work = _put(work, who, moved)
        states[number] = _put(states[number], who, state, count)
        if final:
            last.append((who, batches[-1]))
    sent, kept = each(end, scales, cohort.own, work)
    for who, batch in last if cohort.losses else ():
        losses[who] = each(loss, *_pick((scales, cohort.own, sent, kept), who), batch)
    fine = losses.isfinite() & is_finite((sent, kept), leading=1).to(device)
    broken = {i: 0 for i, ok in enumerate(fine.tolist()) if not ok}
    found = losses.tolist() if cohort.losses else []
    return Outcome(Held(sent), Held(kept), states, found, broken)


def _stacked(function: Any, *arguments: Any, count: int, randomness: str) -> Any:
    """Applies a function to each of ``count`` clients' entries of arguments; stacks the results."""
    dims = tuple(0 if _tensors(argument) else None for argument in arguments)
    if 0 not in dims:  # the same for all
        return repeated(function(*arguments), count)
    return vmap(function, in_dims=dims, randomness=randomness)(*arguments)


def _tensors(tree: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in tree_leaves(tree))


def _pick(tree: Any, who: Who) -> Any:
    return tree if who is ALL else select(tree, who)


def _put(tree: Any, who: Who, some: Any, count: int = 0) -> Any:
    """Returns a tree with some clients' entries replaced by ``some``.

    An empty tree of ``count`` clients begins at zero.
    """
    if who is ALL:
        return some
    if not tree:
        tree = tree_map(lambda leaf: leaf.new_zeros(count, *leaf.shape[1:]), some)
    return tree_map(lambda leaf, new: leaf.index_copy(0, who, new), tree, some)
