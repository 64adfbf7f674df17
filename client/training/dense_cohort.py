"""One local round of a cohort whose networks end in dense layers, with ``engram.dense``.

The rule runs as it is on stacked parameters. First dense layers are held in the span of the rows
that the round draws, where these are fewer than the inputs' width.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from client.training.cohort import ALL, CohortModels, CohortTask, Draws, LocalRound, Rules
from client.training.sizes import each_size
from engram.dense import FIRST, Examples, FirstLayerCoordinates, InputRows, PlainCoordinates
from engram.features import FeatureRows, Features
from engram.federated.parts import whose_turn
from engram.span import Span, make_coordinates
from engram.tree import part
from engram.types import LocalRule, LossFn, Params

__all__ = ["cost", "dense", "pays"]

Targets = Callable[[Tensor], Tensor]

_CHUNK = 48  # rows of a client that a span takes in at once, so that its matrix products are large


def dense(
    rules: Rules,
    loss: LossFn,
    task: CohortTask,
    *,
    targets: Targets,
    features: Features | None = None,
) -> LocalRound:
    """Runs each step once for all clients.

    Args:
        rules: Builds the rule, which must be affine, on ``loss``.
        loss: ``engram.dense.dense_loss`` of the network.
        task: What to do.
        targets: Converts the data's targets to the loss's.
        features: The network's layers before its dense ones; None if there are none. With
            ``features``, the rule must be ``single_use``, and no client may bring a memory.

    A client may bring at most one first layer of its own: a memory's, or a personal parameter.
    """
    if task.draws.sizes is not None:
        alike = partial(dense, rules, loss, targets=targets, features=features)
        return each_size(alike, task)
    carried = any(memory is not None for memory in task.memories)
    rule = rules(task.scales)
    weight = (task.model | task.own)[FIRST]
    own = {name: leaf for name, leaf in task.own.items() if name.endswith("/" + FIRST)}
    count, drawn = task.draws.rows.shape
    coordinates: FirstLayerCoordinates
    if features is None:
        coordinates = _coordinates(rule, weight, count, drawn, brought=carried or bool(own))
        stream = _examples(coordinates, task, targets)
    else:
        coordinates = Span(weight, weight.new_zeros(count, drawn, weight.shape[-1]), 0)
        stream = _featured(coordinates, task, features, targets)
    w = task.start
    w[FIRST] = coordinates.origin()
    w |= {name: coordinates.hold(leaf, list(range(count))) for name, leaf in own.items()}
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
    for number, batches in enumerate(zip(*[stream] * task.draws.batches, strict=True)):
        step = whose_turn(rule, later=task.draws.later(number)).step
        w, u = step(_fit(w, batches[-1]), _fit(u, batches[-1]), batches)
    if rule.finish is not None:
        w = rule.finish(w, u)
    losses = [loss(w, batches[-1])] if task.losses else []
    # Like `tree.is_finite`, but for each client.
    sums = [leaf.reshape(count, -1).sum(1, dtype=torch.float64) for leaf in w.values()]
    fine = torch.stack([*sums, *losses]).isfinite().all(0).tolist()
    broken = {i: 0 for i in range(count) if not fine[i]}
    found = losses[0].tolist() if losses else []
    return LocalRound(CohortModels(w, coordinates), CohortModels(u, coordinates), found, broken)


def cost(model: Params, drawn: int) -> int:
    """Returns how many numbers a client holds at most, if it draws ``drawn`` rows."""
    out, width = model[FIRST].shape
    size = sum(leaf.numel() for leaf in model.values())
    rows = out + drawn  # with room for a memory
    held = rows * out + size - out * width if rows < width else size
    return rows * (width + rows) + 12 * held + 3 * size  # a step's vectors, and its result


def pays(model: Params, drawn: int) -> bool:
    """Whether computing with rows of learned features takes less than with the weights."""
    out, width = model[FIRST].shape
    return drawn * (out + width) < out * width


def _coordinates(
    rule: LocalRule, weight: Tensor, clients: int, drawn: int, *, brought: bool
) -> FirstLayerCoordinates:
    """Chooses how a cohort's first layers are stored; see ``make_coordinates``."""
    if all(companion.copied and companion.personal for companion in rule.companions):
        return make_coordinates(weight, clients, drawn, brought=brought)
    # A span holds models, one per client. Companions that start at zero are no models.
    return PlainCoordinates(weight, weight.new_empty(clients, drawn, weight.shape[-1]))


def _hold(coordinates: FirstLayerCoordinates, memories: Sequence[Params | None]) -> Params:
    """Returns the memories of the clients that have one, stacked, in these coordinates."""
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
    """Like ``_examples``, for rows that enter the span as features, when they are used."""
    draws = task.draws
    names = tuple(name for name in part(task.start) if not name.startswith("dense"))
    for start, stop in pairwise(_edges(draws, 1)):
        x, y = draws.take(ALL, start, stop)
        rows = FeatureRows(features, names, span, x, start, stop)
        yield from _batches(rows, targets(y), draws, start)


def _edges(draws: Draws, least: int) -> list[int]:
    """Returns where to cut the rows: at ends of steps, into parts of at least ``least`` rows."""
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
