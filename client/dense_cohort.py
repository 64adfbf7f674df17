"""One local round of a cohort of dense networks, without autograd.

The rule runs as it is on stacked parameters, with the derivatives of ``engram.dense``. First layers
are held in the span of the rows that the round draws, where these are fewer than the inputs' width.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch.func import vmap

from client.cohort import Draws, Held, LocalRound, Task
from engram.dense import FIRST, Examples, Frame, Plain, indicators
from engram.span import Span
from engram.tree import is_finite
from engram.types import LocalRule, LossFn, Params

__all__ = ["cost", "dense"]

_CHUNK = 48  # rows of a client that a span sees at once: enough for its products to be large


def dense(rule: LocalRule, loss: LossFn, task: Task) -> LocalRound:
    """Runs each step once for all clients.

    Args:
        rule: A linear one, built on ``loss``.
        loss: ``engram.dense.dense_loss`` of the network.
        task: What to do.
    """
    carried = any(memory is not None for memory in task.memories)
    frame = _frame(task.model[FIRST], task.draws, carried=carried)
    count = len(task.memories)
    w = {name: leaf.expand(count, *leaf.shape) for name, leaf in task.model.items()}
    w[FIRST] = frame.origin()
    brought = _hold(frame, task.memories) if carried else {}
    stream = _examples(frame, task.draws, classes=len(next(reversed(task.model.values()))))
    initial = next(stream) if task.draws.initial else None
    if initial is not None:
        w, brought = _fit(w, initial), _fit(brought, initial)
    u = rule.init(w, initial)
    if carried:
        have = [i for i, memory in enumerate(task.memories) if memory is not None]
        u = {name: leaf.clone() for name, leaf in u.items()}
        for name, leaf in u.items():
            leaf[have] = brought[name]
    batches: tuple[Examples, ...] = ()
    for batches in zip(*[stream] * task.draws.batches, strict=True):
        w, u = rule.step(_fit(w, batches[-1]), _fit(u, batches[-1]), batches)
    losses = loss(w, batches[-1])
    fine = (vmap(is_finite)(w) & losses.isfinite()).tolist()
    broken = {i: 0 for i in range(count) if not fine[i]}
    return LocalRound(Held(w, frame), Held(u, frame), losses.tolist(), broken)


def cost(model: Params, drawn: int) -> int:
    """Returns how many numbers a client of a cohort takes, at most, if it draws so many rows."""
    out, width = model[FIRST].shape
    size = sum(leaf.numel() for leaf in model.values())
    rows = out + drawn  # with room for a memory
    held = rows * out + size - out * width if rows < width else size
    return rows * (width + rows) + 12 * held + 3 * size  # vectors of a step; what comes of it


def _frame(weight: torch.Tensor, draws: Draws, *, carried: bool) -> Frame:
    """Chooses how first layers are held, and makes room for the rows."""
    count, drawn = draws.rows.shape
    brought = len(weight) if carried else 0
    if brought + drawn < weight.shape[1]:
        return Span(weight, weight.new_empty(count, brought + drawn, weight.shape[1]), brought)
    return Plain(weight, weight.new_empty(count, drawn, weight.shape[1]))


def _hold(frame: Frame, memories: Sequence[Params | None]) -> Params:
    """Returns the memories that there are, stacked, as the frame holds them."""
    have = [i for i, memory in enumerate(memories) if memory is not None]
    kept = [memory for memory in memories if memory is not None]
    stack = {name: torch.stack([memory[name] for memory in kept]) for name in kept[0]}
    return stack | {FIRST: frame.hold(stack[FIRST], have)}


def _fit(held: Params, batch: Examples) -> Params:
    return held | {FIRST: batch.rows.fit(held[FIRST])} if FIRST in held else held


def _examples(frame: Frame, draws: Draws, *, classes: int) -> Iterator[Examples]:
    """Gathers the rows and yields the batches: the initial one, then those of each step."""
    drawn = draws.rows.shape[1]
    edges = [0]
    for stop in range(draws.initial, drawn + 1, draws.step_size):
        if stop - edges[-1] >= _CHUNK or stop == drawn:
            edges.append(stop)
    for start, stop in pairwise(edges):
        y = draws.split.take(draws.rows[:, start:stop], out=frame.drawn[:, start:stop])[1]
        seen = frame.see(start, stop)
        targets = indicators(y, classes)
        at = 0
        while at < stop - start:
            size = draws.initial if start + at < draws.initial else draws.size
            yield Examples(seen.part(at, at + size), targets[:, at : at + size])
            at += size
