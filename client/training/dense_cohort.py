"""One local round of a cohort whose networks end in dense layers, with ``engram.dense``.

The rule runs as it is on stacked parameters. First dense layers are held in the span of the rows
that the round draws, where these are fewer than the inputs' width.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from client.training.cohort import ALL, CohortModels, CohortTask, Draws, LocalRound
from engram.dense import FIRST, Examples, FirstLayerCoordinates, InputRows
from engram.features import FeatureRows, Features
from engram.span import Span, make_coordinates
from engram.types import LocalRule, LossFn, Params

__all__ = ["cost", "dense", "pays"]

Targets = Callable[[Tensor], Tensor]

_CHUNK = 48  # rows of a client that a span sees at once: enough for its products to be large


def dense(
    rule: LocalRule,
    loss: LossFn,
    task: CohortTask,
    *,
    targets: Targets,
    features: Features | None = None,
) -> LocalRound:
    """Runs each step once for all clients.

    Args:
        rule: An affine one, built on ``loss``.
        loss: ``engram.dense.dense_loss`` of the network.
        task: What to do.
        targets: Makes the loss's targets of the data's.
        features: What the network does to inputs before its dense layers, if anything. The rule
            must then be a ``single_use`` one, and no client bring a memory along.
    """
    carried = any(memory is not None for memory in task.memories)
    weight = task.model[FIRST]
    count, drawn = task.draws.rows.shape
    coordinates: FirstLayerCoordinates
    if features is None:
        coordinates = make_coordinates(weight, count, drawn, brought=carried)
        stream = _examples(coordinates, task, targets)
    else:
        coordinates = Span(weight, weight.new_zeros(count, drawn, weight.shape[1]), 0)
        stream = _featured(coordinates, task, features, targets)
    w = task.start
    w[FIRST] = coordinates.origin()
    brought = _hold(coordinates, task.memories) if carried else {}
    initial = next(stream) if task.draws.initial else None
    if initial is not None:
        w, brought = _fit(w, initial), _fit(brought, initial)
    u = rule.init(w, initial)
    if carried:
        have = [i for i, memory in enumerate(task.memories) if memory is not None]
        u = {name: leaf.clone() for name, leaf in u.items()}
        for name, leaf in brought.items():
            u[name][have] = leaf
    batches: tuple[Examples, ...] = ()
    for batches in zip(*[stream] * task.draws.batches, strict=True):
        w, u = rule.step(_fit(w, batches[-1]), _fit(u, batches[-1]), batches)
    losses = loss(w, batches[-1])
    # As `tree.is_finite`, for each client.
    sums = [leaf.flatten(1).sum(1, dtype=torch.float64) for leaf in w.values()]
    fine = torch.stack([*sums, losses]).isfinite().all(0).tolist()
    broken = {i: 0 for i in range(count) if not fine[i]}
    return LocalRound(
        CohortModels(w, coordinates), CohortModels(u, coordinates), losses.tolist(), broken
    )


def cost(model: Params, drawn: int) -> int:
    """Returns how many numbers a client of a cohort takes, at most, if it draws so many rows."""
    out, width = model[FIRST].shape
    size = sum(leaf.numel() for leaf in model.values())
    rows = out + drawn  # with room for a memory
    held = rows * out + size - out * width if rows < width else size
    return rows * (width + rows) + 12 * held + 3 * size  # vectors of a step; what comes of it


def pays(model: Params, drawn: int) -> bool:
    """Returns whether rows of learned features take less to compute with than the weights."""
    out, width = model[FIRST].shape
    return drawn * (out + width) < out * width


def _hold(coordinates: FirstLayerCoordinates, memories: Sequence[Params | None]) -> Params:
    """Returns the existing memories, stacked, in these coordinates."""
    have = [i for i, memory in enumerate(memories) if memory is not None]
    kept = [memory for memory in memories if memory is not None]
    stack = {name: torch.stack([memory[name] for memory in kept]) for name in kept[0]}
    return stack | {FIRST: coordinates.hold(stack[FIRST], have)}


def _fit(held: Params, batch: Examples) -> Params:
    return {k: batch.rows.fit(v) if k.endswith(FIRST) else v for k, v in held.items()}


def _examples(
    coordinates: FirstLayerCoordinates, task: CohortTask, targets: Targets
) -> Iterator[Examples]:
    """Gathers the rows and yields the batches: the initial one, then those of each step."""
    draws = task.draws
    for start, stop in pairwise(_edges(draws, _CHUNK)):
        y = draws.take(ALL, start, stop, out=coordinates.drawn[:, start:stop])[1]
        yield from _batches(coordinates.see(start, stop), targets(y), draws, start)


def _featured(
    span: Span, task: CohortTask, features: Features, targets: Targets
) -> Iterator[Examples]:
    """The same, for rows that enter the span later, as features."""
    draws = task.draws
    names = tuple(name for name in task.start if not name.startswith("dense"))
    for start, stop in pairwise(_edges(draws, 1)):
        x, y = draws.take(ALL, start, stop)
        rows = FeatureRows(features, names, span, x, start, stop)
        yield from _batches(rows, targets(y), draws, start)


def _edges(draws: Draws, least: int) -> list[int]:
    """Cuts the rows where steps end, into parts of at least so many."""
    drawn = draws.rows.shape[1]
    edges = [0]
    for stop in range(draws.initial, drawn + 1, draws.step_size):
        if stop - edges[-1] >= least or stop == drawn:
            edges.append(stop)
    return edges


def _batches(rows: InputRows, targets: Tensor, draws: Draws, start: int) -> Iterator[Examples]:
    at = 0
    while at < targets.shape[1]:
        size = draws.initial if start + at < draws.initial else draws.size
        yield Examples(rows.part(at, at + size), targets[:, at : at + size])
        at += size
