"""Each step once for clients whose networks end in dense layers, with ``engram.dense``.

The method runs as it is on stacked clients; its phases must be affine. First dense layers of slots
that are models are held in the span of the rows that the round draws, where these are fewer than
the inputs' width.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from engram.cohort.draws import ALL, Draws
from engram.cohort.sizes import each_size
from engram.cohort.task import CohortTask, Held, Outcome, Problem
from engram.core.method import Method, Slots
from engram.core.optimizers import State
from engram.dense import FIRST, Examples, FirstLayerCoordinates, InputRows, PlainCoordinates
from engram.features import FeatureRows, Features
from engram.span import Span, make_coordinates
from engram.tree import is_finite
from engram.types import Params

__all__ = ["cost", "dense", "origin", "pays"]

Targets = Callable[[Tensor], Tensor]

_CHUNK = 48  # rows of a client that a span takes in at once, so that its matrix products are large


def dense(
    problem: Problem, task: CohortTask, *, targets: Targets, features: Features | None = None
) -> Outcome:
    """Trains a cohort's clients together; the optimizer's states are not returned.

    Args:
        problem: With the objective ``engram.core.objective.by_hand``.
        task: The inputs, without states.
        targets: Converts the data's targets to the loss's.
        features: The network's layers before its dense ones; None if there are none. With
            ``features``, steps must take one gradient of each batch.
    """
    if task.draws.sizes is not None:
        return each_size(partial(dense, problem, targets=targets, features=features), task)
    method, count = problem.build(task.scales), task.clients
    common = tree_map(lambda leaf: leaf.expand(count, *leaf.shape), task.common)
    received, kept = common | task.own, task.kept
    coordinates = _coordinates(method, task, features)
    received, kept = _held(method, coordinates, task, received, kept)
    stream = _examples(coordinates, task, targets, features)
    initial = next(stream) if task.draws.initial else None
    if initial is not None:
        received, kept = _fit(received, initial), _fit(kept, initial)
    work = method.client.begin(received, kept, initial)
    states: list[State] = [{} for _ in method.client.phases]
    batches: tuple[Examples, ...] = ()
    for h, batches in enumerate(zip(*[stream] * task.draws.batches, strict=True)):
        at = task.draws.phase(h)
        work, states[at] = problem.stepper.take(
            method.client.phases[at],
            _fit(work, batches[-1]),
            _fit(states[at], batches[-1]),
            batches,
        )
    received = _fit(received, batches[-1])
    sent, kept = method.client.end(received, work)
    losses = []
    if task.losses:
        served = method.serve(received | sent, kept, True)
        losses = [problem.reported(served, batches[-1])]
    fine = is_finite((sent, kept, losses), leading=1).tolist()
    broken = {i: 0 for i in range(count) if not fine[i]}
    found = losses[0].tolist() if losses else []
    return Outcome(Held(sent, coordinates), Held(kept, coordinates), [], found, broken)


def origin(method: Method, common: Slots) -> Tensor | None:
    """Returns the first layer that clients begin at, by what they receive alike; None: at others.

    It is the origin of the span in which their first layers are held.
    """
    return next((common[s][FIRST] for s in _models(method, common)), None)


def cost(model: Params, drawn: int) -> int:
    """Returns how many numbers a client holds at most, if it draws ``drawn`` rows."""
    out, width = model[FIRST].shape
    size = sum(leaf.numel() for leaf in model.values())
    rows = out + drawn  # with room for a layer of its own
    held = rows * out + size - out * width if rows < width else size
    return rows * (width + rows) + 12 * held + 3 * size  # a step's vectors, and its result


def pays(model: Params, drawn: int) -> bool:
    """Whether computing with rows of learned features takes less than with the weights."""
    out, width = model[FIRST].shape
    return drawn * (out + width) < out * width


def _models(method: Method, slots: Slots) -> list[str]:
    """Returns the slots that are models and have a first layer."""
    return [s for s, x in slots.items() if method.kinds[s] == "model" and FIRST in x]


def _coordinates(
    method: Method, task: CohortTask, features: Features | None
) -> FirstLayerCoordinates:
    """Chooses how first layers are stored; see ``make_coordinates``."""
    common = [task.common[s][FIRST] for s in _models(method, task.common)]
    own = [x[s][FIRST] for x in (task.own, task.kept) for s in _models(method, x)]
    count, drawn = task.draws.rows.shape
    weight = (common or own)[0]
    differences = any(
        method.kinds[s] == "difference" and FIRST in x
        for s, x in (task.common | task.own | task.kept).items()
    )
    if features is not None:
        return Span(weight, weight.new_zeros(count, drawn, weight.shape[-1]), 0)
    more = len(own) - (0 if common else 1)
    # A span holds models that are near one, or near that and one of each client's own.
    if differences or len(common) > 1 or more > 1:
        return PlainCoordinates(weight, weight.new_empty(count, drawn, weight.shape[-1]))
    return make_coordinates(weight, count, drawn, brought=more > 0)


def _held(
    method: Method,
    coordinates: FirstLayerCoordinates,
    task: CohortTask,
    received: Slots,
    kept: Slots,
) -> tuple[Slots, Slots]:
    """Returns what clients received and keep, with first layers in these coordinates."""
    everyone = list(range(task.clients))
    slots = [(received, s) for s in (*_models(method, task.common), *_models(method, task.own))]
    slots += [(kept, s) for s in _models(method, kept)]
    found: list[Slots] = [dict(received), dict(kept)]
    plain = isinstance(coordinates, PlainCoordinates)
    for number, (source, s) in enumerate(slots):
        weight = source[s][FIRST]
        if plain:
            held = weight
        elif number == 0:
            held = coordinates.origin()
        else:
            held = coordinates.hold(weight, everyone)
        found[source is kept][s] = source[s] | {FIRST: held}
    return found[0], found[1]


def _fit(held: Any, batch: Examples) -> Any:
    """Returns slots, or an optimizer's states of slots, with room for the rows known so far."""
    return {
        name: _fit(x, batch) if isinstance(x, dict) else batch.rows.fit(x) if name == FIRST else x
        for name, x in held.items()
    }


def _examples(
    coordinates: FirstLayerCoordinates,
    task: CohortTask,
    targets: Targets,
    features: Features | None,
) -> Iterator[Examples]:
    """Gathers the rows and yields the batches: the initial one, then those of each step.

    With features, rows enter the span when they are used.
    """
    draws = task.draws
    learned = next((x for s, x in (task.common | task.own).items() if isinstance(x, dict)), {})
    names = tuple(name for name in learned if not name.startswith("dense"))
    for start, stop in pairwise(_edges(draws, _CHUNK if features is None else 1)):
        if features is None:
            y = draws.take(ALL, start, stop, out=coordinates.drawn[:, start:stop])[1]
            yield from _batches(coordinates.see(start, stop), targets(y), draws, start)
        else:
            assert isinstance(coordinates, Span)  # for mypy: see ``_coordinates``
            x, y = draws.take(ALL, start, stop)
            rows = FeatureRows(features, names, coordinates, x, start, stop)
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
