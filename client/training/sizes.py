"""Cohorts whose clients have batches of several sizes, by ways that take one size."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from client.training.cohort import CohortModels, CohortTask, Draws, LocalRound
from engram.types import Params

__all__ = ["each_size"]


def each_size(way: Callable[[CohortTask], LocalRound], task: CohortTask) -> LocalRound:
    """Runs clients whose batches have as many rows together, one size after the other.

    Args:
        way: Runs a cohort whose batches all have as many rows.
        task: What to do; each client's batches have the same size in all steps.
    """
    sizes = task.draws.sizes
    if sizes is None:
        return way(task)
    groups = [np.flatnonzero(sizes[:, 0] == size) for size in np.unique(sizes[:, 0])]
    parts = [way(_part(task, some.tolist())) for some in groups]
    order = np.argsort(np.concatenate(groups)).tolist()
    losses = [loss for part in parts for loss in part.losses]
    return LocalRound(
        _joined([part.models for part in parts], order),
        _joined([part.states for part in parts], order),
        [losses[i] for i in order] if losses else [],
        {
            int(some[i]): h
            for some, p in zip(groups, parts, strict=True)
            for i, h in p.broken.items()
        },
    )


def _part(task: CohortTask, some: list[int]) -> CohortTask:
    return task._replace(
        memories=[task.memories[i] for i in some],
        draws=_draws(task.draws, some),
        own={name: leaf[some] for name, leaf in task.own.items()},
        scales={name: column[some] for name, column in task.scales.items()},
    )


def _draws(draws: Draws, some: list[int]) -> Draws:
    """Returns the draws of clients whose batches have as many rows, without padding."""
    assert draws.sizes is not None  # for mypy: each_size has looked
    size = int(draws.sizes[some[0], 0])

    def without_padding(numbers: Tensor) -> Tensor:
        first, rest = numbers[some, : draws.initial], numbers[some, draws.initial :]
        batches = rest.reshape(len(some), -1, draws.size)[:, :, :size]
        return torch.cat([first, batches.flatten(1)], dim=1)

    return draws._replace(
        rows=without_padding(draws.rows),
        size=size,
        seeds=None if draws.seeds is None else without_padding(draws.seeds),
        keys=None if draws.keys is None else draws.keys[some],
        sizes=None,
        turns=None if draws.turns is None else draws.turns[some],
    )


def _joined(parts: Sequence[CohortModels], order: list[int]) -> CohortModels:
    stacks = [part.stack() for part in parts]
    found: Params = {}
    for name, leaf in stacks[0].items():  # a count of steps, which all share, has no client axis
        found[name] = torch.cat([stack[name] for stack in stacks])[order] if leaf.ndim else leaf
    return CohortModels(found)
