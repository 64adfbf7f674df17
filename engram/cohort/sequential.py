"""All steps of one client, then those of the next: for any network, and any loss."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from engram.cohort.round import ClientRaised, Cohort, Held, Outcome, Problem
from engram.core.method import Method, Slots
from engram.core.slot_optimizers import State
from engram.core.tree import is_finite, select, stacked
from engram.core.types import Batch


def in_turn(problem: Problem, cohort: Cohort) -> Outcome:
    """Trains a cohort's clients one after the other.

    Raises:
        ClientRaised: A client's step raised an error.
    """
    common = tree_map(channels_last, cohort.common)
    done = [_one(problem, cohort, common, i) for i in range(cohort.clients)]
    sent, kept, states, losses, broken = zip(*done, strict=True)
    return Outcome(
        Held(stacked(sent)),
        Held(stacked(kept)),
        [_states(some) for some in zip(*states, strict=True)],
        [loss for loss in losses if loss is not None],
        {i: step for i, step in enumerate(broken) if step is not None},
    )


def _one(problem: Problem, cohort: Cohort, common: Slots, i: int) -> tuple[Any, ...]:
    """Returns client i's update, memory, optimizer's states, loss, and first broken step."""
    cohort, h = cohort.of([i]), 0
    method = problem.build({name: float(column[0]) for name, column in cohort.scales.items()})
    try:
        received = common | _only(cohort.own)
        states = [_only(state) for state in cohort.states] or [{} for _ in method.client.phases]
        work = method.client.begin(
            received, _only(cohort.kept), _only(cohort.draws.initial_batch())
        )
        begun = work, list(states)
        batches: tuple[Batch, ...] = ()
        for h, step in enumerate(cohort.draws.each_step(), start=1):  # noqa: B007 - for the handler
            batches, phase = _only(step.batches), method.client.phases[step.phase]
            work, states[step.phase] = problem.take(phase, work, states[step.phase], batches)
        sent, kept = method.client.end(received, work)
        loss = None
        if cohort.losses:
            served = method.serve(received | sent, kept, True)
            loss = float(problem.reported(served, batches[-1]))
    except Exception as error:  # a user's method may raise anything, which becomes the cause
        raise ClientRaised(i, h) from error
    fine = bool(is_finite((sent, kept))) and (loss is None or isfinite(loss))
    broken = None if fine else _first_broken(problem, method, *begun, cohort)
    return sent, kept, states, loss, broken


def _states(each: Sequence[State]) -> State:
    """Stacks the optimizer's states of a phase; zeros for clients without a step in it."""
    begun = next((state for state in each if state), {})
    return stacked([state or tree_map(torch.zeros_like, begun) for state in each])


def _first_broken(
    problem: Problem, method: Method, work: Slots, states: list[State], cohort: Cohort
) -> int:
    """Returns the first step with a non-finite slot; the last for the loss alone."""
    number = 0
    for step in cohort.draws.each_step():
        phase = method.client.phases[step.phase]
        batches, state = _only(step.batches), states[step.phase]
        work, states[step.phase] = problem.take(phase, work, state, batches)
        number += 1
        if not is_finite(work):
            break
    return number


def _only(stack: Any) -> Any:
    return None if stack is None else tree_map(channels_last, select(stack, 0))


def channels_last(leaf: Tensor) -> Tensor:
    """Returns images or filters, (n, c, h, w), with the channels last in memory; others as is.

    In this order CPUs pool ten times as fast, and nothing is slower. torch leaves the strides of a
    single channel alone, and convolutions then answer with the channels first: they are given here.
    """
    if leaf.ndim != 4:
        return leaf
    leaf = leaf.contiguous(memory_format=torch.channels_last)
    _, channels, height, width = leaf.shape
    return leaf.as_strided(leaf.shape, (height * width * channels, 1, width * channels, channels))
