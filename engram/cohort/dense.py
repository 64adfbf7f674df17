"""Each step once for clients whose networks end in dense layers, with ``engram.dense``.

The method runs as it is on stacked clients; its phases must be affine. First dense layers of slots
are held in the span of what clients begin with and of the rows that the round draws, where these
are fewer than the inputs' width.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from engram.cohort.draws import ALL, Draws
from engram.cohort.round import Cohort, Held, Outcome, Problem, joined
from engram.core.method import Slots
from engram.core.optimizers import State
from engram.dense import FIRST, Examples, FirstLayerCoordinates, InputRows
from engram.span import Span, make_coordinates
from engram.tree import is_finite
from engram.types import Params

if TYPE_CHECKING:
    from engram.features import Features

__all__ = ["cost", "dense", "first_base", "pays"]

Targets = Callable[[Tensor], Tensor]

_CHUNK = 48  # rows of a client that a span takes in at once, so that its matrix products are large


def dense(
    problem: Problem, cohort: Cohort, *, targets: Targets, features: "Features | None" = None
) -> Outcome:
    """Trains a cohort's clients together; the optimizer's states are not returned.

    Args:
        problem: With the objective ``engram.core.objective.by_hand``.
        cohort: The clients; their ``states`` must be empty.
        targets: Converts the data's targets to those of the loss.
        features: The layers before the dense ones; None if there are none. With ``features``, each
            step must take one gradient of each batch.
    """
    if cohort.draws.sizes is not None:
        return _each_size(partial(dense, problem, targets=targets, features=features), cohort)
    method, clients = problem.build(cohort.scales), cohort.clients
    common = tree_map(lambda leaf: leaf.expand(clients, *leaf.shape), cohort.common)
    received, kept = common | cohort.own, cohort.kept
    coordinates = _coordinates(cohort, features)
    received, kept = _held(coordinates, received, kept)
    stream = _examples(coordinates, cohort, targets, features)
    initial = next(stream) if cohort.draws.initial else None
    if initial is not None:
        received, kept = _fit(received, initial), _fit(kept, initial)
    work = method.client.begin(received, kept, initial)
    if initial is None:  # and no rows have been looked at
        held = [slots[s][FIRST] for slots in (received, work) for s in _first_layers(slots)]
        stream = _examples(coordinates.reading(held), cohort, targets, features)
    states: list[State] = [{}] * len(method.client.phases)
    batches: tuple[Examples, ...] = ()
    for h, batches in enumerate(zip(*[stream] * cohort.draws.batches, strict=True)):
        at = cohort.draws.phase(h)
        work, states[at] = problem.stepper.take(
            method.client.phases[at],
            _fit(work, batches[-1]),
            _fit(states[at], batches[-1]),
            batches,
        )
    received = _fit(received, batches[-1])
    sent, kept = method.client.end(received, work)
    losses = []
    if cohort.losses:
        served = method.serve(received | sent, kept, True)
        losses = [problem.reported(served, batches[-1])]
    fine = is_finite((sent, kept, losses), leading=1)
    broken = dict.fromkeys((~fine).nonzero().flatten().tolist(), 0)
    found = losses[0].tolist() if losses else []
    return Outcome(Held(sent, coordinates), Held(kept, coordinates), [], found, broken)


def first_base(common: Slots) -> Tensor | None:
    """Returns the first base of the span, if it is common to all clients; else None."""
    return next((common[s][FIRST] for s in _first_layers(common)), None)


def cost(model: Params, drawn: int) -> int:
    """Returns the largest count of numbers that training one client stores, for ``drawn`` rows."""
    out, width = model[FIRST].shape
    size = sum(leaf.numel() for leaf in model.values())
    rows = out + drawn  # with room for a layer of its own
    held = rows * out + size - out * width if rows < width else size
    return rows * (width + rows) + 12 * held + 3 * size  # a step's vectors, and its result


def pays(model: Params, drawn: int) -> bool:
    """Returns whether the span of ``drawn`` rows of features is cheaper than the weights."""
    out, width = model[FIRST].shape
    return drawn * (out + width) < out * width


def _first_layers(slots: Slots) -> list[str]:
    """Returns the slots that have a first layer."""
    return [s for s, x in slots.items() if isinstance(x, dict) and FIRST in x]


def _coordinates(cohort: Cohort, features: "Features | None") -> FirstLayerCoordinates:
    """Chooses the coordinates of first layers; see ``make_coordinates``."""
    every = (cohort.common, cohort.own, cohort.kept)
    bases = [slots[s][FIRST] for slots in every for s in _first_layers(slots)]
    clients, drawn = cohort.draws.rows.shape
    if features is not None:
        return Span(tuple(bases), bases[0].new_zeros(clients, drawn, bases[0].shape[-1]))
    return make_coordinates(bases, clients, drawn)


def _held(coordinates: FirstLayerCoordinates, *every: Slots) -> tuple[Slots, ...]:
    """Returns slots with first layers in these coordinates, whose bases they are, in this order."""
    number, found = count(), list[Slots]()
    for slots in every:
        held = {s: slots[s] | {FIRST: coordinates.base(next(number))} for s in _first_layers(slots)}
        found.append(slots | held)
    return tuple(found)


def _fit(held: Any, batch: Examples) -> Any:
    """Widens coordinates, in slots or an optimizer's states, to the rows seen so far."""
    return {
        name: _fit(x, batch) if isinstance(x, dict) else batch.rows.fit(x) if name == FIRST else x
        for name, x in held.items()
    }


def _examples(
    coordinates: FirstLayerCoordinates,
    cohort: Cohort,
    targets: Targets,
    features: "Features | None",
) -> Iterator[Examples]:
    """Yields the initial batch, if any, and then those of each step.

    With features, rows enter the span only when a step uses them.
    """
    draws = cohort.draws
    names = () if features is None else _before_dense(cohort.common | cohort.own)
    for start, stop in pairwise(_edges(draws, _CHUNK if features is None else 1)):
        if features is None:
            y = draws.take(ALL, start, stop, out=coordinates.drawn[:, start:stop])[1]
            yield from _batches(coordinates.see(start, stop), targets(y), draws, start)
        else:
            from engram.features import FeatureRows  # noqa: PLC0415 - not always needed

            assert isinstance(coordinates, Span)  # for mypy: see ``_coordinates``
            x, y = draws.take(ALL, start, stop)
            rows = FeatureRows(features, names, coordinates, x, start, stop)
            yield from _batches(rows, targets(y), draws, start)


def _before_dense(received: Slots) -> tuple[str, ...]:
    """Returns the names of parameters of the layers before the dense ones."""
    model = next((x for x in received.values() if isinstance(x, dict)), {})
    return tuple(name for name in model if not name.startswith("dense"))


def _edges(draws: Draws, least: int) -> list[int]:
    """Returns row numbers, ends of steps, that divide the rows into chunks of >= ``least``."""
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
        yield Examples(rows.narrow(at, at + size), targets[:, at : at + size])
        at += size


def _each_size(way: Callable[[Cohort], Outcome], cohort: Cohort) -> Outcome:
    """Trains clients with batches of the same size together, one size after the other.

    Args:
        way: Trains a cohort whose batches all have the same size.
        cohort: The clients; the batches of each have the same size in all steps.
    """
    sizes = cohort.draws.sizes
    if sizes is None:
        return way(cohort)
    groups = [np.flatnonzero(sizes[:, 0] == size).tolist() for size in np.unique(sizes[:, 0])]
    parts = [way(cohort.of(some)._replace(draws=_draws(cohort.draws, some))) for some in groups]
    return joined(parts, groups)


def _draws(draws: Draws, some: list[int]) -> Draws:
    """Returns the draws of clients whose batches have as many rows, without padding."""
    mine = draws.of(some)
    assert mine.sizes is not None  # for mypy: each_size has looked
    size = int(mine.sizes[0, 0])

    def without_padding(numbers: Tensor) -> Tensor:
        first, rest = numbers[:, : draws.initial], numbers[:, draws.initial :]
        batches = rest.reshape(len(some), -1, draws.size)[:, :, :size]
        return torch.cat([first, batches.flatten(1)], dim=1)

    seeds = None if mine.seeds is None else without_padding(mine.seeds)
    return mine._replace(rows=without_padding(mine.rows), size=size, seeds=seeds, sizes=None)
