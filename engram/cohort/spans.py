"""Client by client, several steps at a time in the span of the rows that they differentiate.

A step of a large network with convolutions may take several gradients, and clients keep models of
their own, which differ by little. ``engram.cohort.span_coordinates`` holds their first dense layers
as what the steps began with and outer products with the features of the rows of each gradient. So
nothing is added to a matrix of the layer's size, or subtracted from one, until the span is full.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import register_pytree_node

from engram.cohort.dense import Targets
from engram.cohort.dense_gradients import FIRST, Examples
from engram.cohort.learned_features import FeatureRows, Features
from engram.cohort.round import Cohort, Outcome, Problem
from engram.cohort.sequential import in_turn
from engram.cohort.span_coordinates import Full, Places, Span
from engram.core.method import Method, Phase, Slots
from engram.core.slot_optimizers import State
from engram.core.types import Batch, Scale

STEPS: Final = 3
"""Steps that a span has room for, as measured in benchmarks/NOTES.md."""


def in_spans(
    problem: Problem, cohort: Cohort, *, gradients: int, targets: Targets, features: Features
) -> Outcome:
    """Trains a cohort's clients one after the other; see ``in_turn``.

    Args:
        problem: With the objective ``engram.core.derivatives.by_hand``. Its method's phases are
            affine, and its optimizer remembers nothing.
        cohort: The clients; their ``states`` must be empty.
        gradients: How many of them a step takes, as ``engram.core.method_shapes.gradients_of``
            says.
        targets: Converts the data's targets to those of the loss.
        features: The layers before the dense ones.
    """
    draws = cohort.draws
    step = gradients * draws.size
    spans = _Spans(targets, features, step, max(STEPS * step, draws.initial))

    def build(scales: Mapping[str, Scale]) -> Method:
        method = problem.build(scales)
        begin, end = method.client.begin, method.client.end

        def begun(received: Slots, kept: Slots, batch: Batch | None) -> Slots:
            if batch is None:
                return begin(received, kept, None)
            given = {"received": received, "kept": kept}
            work = spans.through(
                lambda x, some: begin(x["received"], x["kept"], *some), given, (batch,)
            )
            return _weights(work)  # from which steps can be taken again

        def ended(received: Slots, work: Slots) -> tuple[Slots, Slots]:
            return end(received, _weights(work))

        return method._replace(client=method.client._replace(begin=begun, end=ended))

    def take(
        phase: Phase, work: Slots, states: State, batches: tuple[Batch, ...]
    ) -> tuple[Slots, State]:
        def step(work: Slots, examples: tuple[Batch, ...]) -> Slots:
            return problem.take(phase, work, {}, examples)[0]

        return spans.through(step, work, batches), states

    return in_turn(problem._replace(build=build, take=take), cohort)


@dataclass(frozen=True)
class _Held:
    """A first layer of one client in a span. To torch's trees it is what it stands for."""

    span: Span
    coordinates: Tensor

    def weights(self) -> Tensor:
        """Returns it as a matrix, (out, in)."""
        return self.span.weights(self.coordinates)[0]


register_pytree_node(
    _Held, lambda held: ([held.weights()], None), lambda leaves, _: next(iter(leaves))
)


class _Spans:
    """Calls functions of a client's slots with first layers in a span, one span after the other."""

    def __init__(self, targets: Targets, features: Features, step: int, room: int) -> None:
        self._targets, self._features = targets, features
        self._step, self._room = step, room  # rows of a step's gradients, and of a span
        self._span: Span | None = None
        self._places = Places(0)

    def through(
        self,
        function: Callable[[Slots, tuple[Examples, ...]], Slots],
        slots: Slots,
        batches: tuple[Batch, ...],
    ) -> Slots:
        """Calls ``function(slots, batches)``; returns its slots, with ``_Held`` layers."""
        slots, span = self._entered(slots)
        examples = tuple(self._examples(span, *batch) for batch in batches)
        try:
            found = function(_mapped(slots, lambda x: x.coordinates, lambda x: x[None]), examples)
        except Full:  # this step takes more gradients than others
            self._step, self._room = 2 * self._step, 2 * self._room
            return self.through(function, _weights(slots), batches)
        return _mapped(found, partial(_Held, span), lambda x: x[0])

    def _entered(self, slots: Slots) -> tuple[Slots, Span]:
        """Returns slots with first layers in the present span, or in a new one, and the span."""
        left, span = self._places.room - self._places.used, self._span
        there = (isinstance(x, _Held) and x.span is span for x in _layers(slots))
        if span is not None and left >= self._step and all(there):
            return slots, span
        slots = _weights(slots)
        bases = {id(x): x for x in _layers(slots)}
        some = next(iter(bases.values()))
        self._places, rows = Places(self._room), some.new_zeros(1, self._room, some.shape[1])
        made = self._span = Span(tuple(x[None] for x in bases.values()), rows)
        numbers = {key: number for number, key in enumerate(bases)}

        def held(base: Tensor) -> _Held:
            coordinates = made.base(numbers[id(base)])
            return _Held(made, functional.pad(coordinates, (0, 0, 0, self._room)))

        return _mapped(slots, held, lambda x: x), made

    def _examples(self, span: Span, x: Tensor, y: Tensor) -> Examples:
        rows = FeatureRows(self._features, span, self._places, x[None], self._places.room)
        return Examples(rows, self._targets(y)[None])


def _weights(slots: Slots) -> Slots:
    """Returns slots with first layers as weights, the same layers as the same ones."""
    found: dict[int, Tensor] = {}

    def weights(x: Any) -> Any:
        if not isinstance(x, _Held):
            return x
        if id(x.coordinates) not in found:
            found[id(x.coordinates)] = x.weights()
        return found[id(x.coordinates)]

    return _mapped(slots, weights, lambda x: x)


def _layers(slots: Slots) -> Iterator[Any]:
    for name, x in slots.items():
        if isinstance(x, dict):
            yield from _layers(x)
        elif name == FIRST:
            yield x


def _mapped(slots: Slots, first: Callable[[Any], Any], other: Callable[[Tensor], Any]) -> Slots:
    def mapped(name: str, x: Any) -> Any:
        if isinstance(x, dict):
            return _mapped(x, first, other)
        return first(x) if name == FIRST else other(x)

    return {name: mapped(name, x) for name, x in slots.items()}
