"""Each step once for all clients, for networks that end in dense layers.

The gradients are those of ``engram.cohort.dense_gradients``.

The method runs as it is on stacked clients; its phases must be affine. First dense layers of slots
are held in the span of what clients begin with and of the rows that the round draws, where these
are fewer than the inputs' width.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

from torch import Tensor

from engram.cohort.dense_gradients import FIRST, Examples, FirstLayerCoordinates, InputRows
from engram.cohort.draws import ALL, Steps, arranged, groups
from engram.cohort.learned_features import FeatureRows, Features
from engram.cohort.round import Cohort, Held, Outcome, Problem, joined
from engram.cohort.span_coordinates import Places, Span, longest, make_coordinates
from engram.core.method import Slots
from engram.core.slot_optimizers import State
from engram.core.tree import is_finite, repeated
from engram.core.types import Params

Targets = Callable[[Tensor], Tensor]

_CHUNK = 48  # rows of a client that a span takes in at once, so that its matrix products are large


def dense(
    problem: Problem, cohort: Cohort, *, targets: Targets, features: Features | None = None
) -> Outcome:
    """Trains a cohort's clients together; the optimizer's states are not returned.

    Args:
        problem: With the objective ``engram.core.derivatives.by_hand``.
        cohort: The clients; their ``states`` must be empty.
        targets: Converts the data's targets to those of the loss.
        features: The layers before the dense ones; None if there are none. With ``features``, each
            step must take one gradient of each batch.
    """
    way = partial(_together, problem, targets=targets, features=features)
    draws = cohort.draws
    if draws.sizes is None:
        return way(cohort, Steps(draws, [draws.size] * draws.steps))

    some = groups(draws, padded=features is None)  # features may depend on other rows
    if len(some) == 1:
        return way(cohort, arranged(draws))
    parts = map(cohort.of, some)
    return joined([way(part, arranged(part.draws)) for part in parts], some)


def _together(
    problem: Problem, cohort: Cohort, steps: Steps, *, targets: Targets, features: Features | None
) -> Outcome:
    method, clients = problem.build(cohort.scales), cohort.clients
    received, kept = repeated(cohort.common, clients) | cohort.own, cohort.kept
    coordinates = _coordinates(cohort, steps, features)
    received, kept = _held(coordinates, received, kept)
    stream = _examples(coordinates, steps, targets, features)
    initial = next(stream) if cohort.draws.initial else None
    if initial is not None:
        received, kept = _fit(received, initial), _fit(kept, initial)
    work = method.client.begin(received, kept, initial)
    if initial is None:  # and no rows have been looked at
        held = [slots[s][FIRST] for slots in (received, work) for s in _first_layers(slots)]
        stream = _examples(coordinates.reading(held), steps, targets, features)
    states: list[State] = [{}] * len(method.client.phases)
    batches: tuple[Examples, ...] = ()
    for h, batches in enumerate(zip(*[stream] * cohort.draws.batches, strict=True)):
        at = cohort.draws.phase(h)
        before = _fit(work, batches[-1]), _fit(states[at], batches[-1])
        after = problem.take(method.client.phases[at], *before, batches)
        work, states[at] = steps.moved(h, after, before)
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


def cost(model: Params, drawn: int, size: int, batches: int, initial: int) -> int:
    """Returns the largest count of numbers that training one client stores.

    Args:
        model: The network.
        drawn: Most rows that a client draws in a round; others may draw fewer.
        size: Rows of a batch.
        batches: Batches of a step.
        initial: Rows of the initial batch.
    """
    out, width = model[FIRST].shape
    whole = sum(leaf.numel() for leaf in model.values())
    limit = longest(out, width, size)
    rows = out + min(drawn, limit)  # with room for a layer of its own
    held = rows * out + whole - out * width
    spanned = rows * (width + rows) + 12 * held + 3 * whole  # a step's vectors, and its result
    if out + drawn <= limit:
        return spanned
    return max(spanned, _most(drawn, batches * size, initial) * width + 15 * whole)


def _most(drawn: int, step: int, initial: int) -> int:
    return min(drawn, max(initial, _CHUNK - 1 + step))


def pays(model: Params, drawn: int) -> bool:
    """Returns whether the span of ``drawn`` rows of features is cheaper than the weights."""
    out, width = model[FIRST].shape
    return drawn * (out + width) < out * width


def _first_layers(slots: Slots) -> list[str]:
    return [s for s, x in slots.items() if isinstance(x, dict) and FIRST in x]


def _coordinates(cohort: Cohort, steps: Steps, features: Features | None) -> FirstLayerCoordinates:
    every = (cohort.common, cohort.own, cohort.kept)
    bases = [slots[s][FIRST] for slots in every for s in _first_layers(slots)]
    clients, drawn = steps.draws.rows.shape
    if features is not None:
        return Span(tuple(bases), bases[0].new_zeros(clients, drawn, bases[0].shape[-1]))
    size = max(steps.widths)
    most = _most(drawn, steps.draws.batches * size, steps.draws.initial)
    return make_coordinates(bases, clients, drawn, size=size, most=most)


def _held(coordinates: FirstLayerCoordinates, *every: Slots) -> tuple[Slots, ...]:
    """Returns slots with their first layers in these coordinates, as the bases in order."""
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
    coordinates: FirstLayerCoordinates, steps: Steps, targets: Targets, features: Features | None
) -> Iterator[Examples]:
    """Yields the initial batch, if any, and then those of each step.

    With features, rows enter the span only when a step uses them.
    """
    places = Places(steps.draws.rows.shape[1])
    for start, stop, batches in steps.chunks(_CHUNK if features is None else 1):
        rows: InputRows
        if features is None:
            first = start if isinstance(coordinates, Span) else 0  # others need no former rows
            seen = first, first + stop - start
            y = steps.draws.take(ALL, start, stop, out=coordinates.drawn[:, slice(*seen)])[1]
            rows = coordinates.see(*seen)
        else:
            assert isinstance(coordinates, Span)  # for mypy: see ``_coordinates``
            x, y = steps.draws.take(ALL, start, stop)
            rows = FeatureRows(features, coordinates, places, x, stop)
        wanted, end = targets(y), 0
        for size, shares in batches:
            begin, end = end, end + size
            yield Examples(rows.narrow(begin, end), wanted[:, begin:end], shares)
