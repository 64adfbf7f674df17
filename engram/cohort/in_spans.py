"""Client by client, several steps at a time in the span of the rows that they differentiate.

A step of a large network with convolutions may take several gradients, and clients keep models of
their own, which differ by little. ``engram.span`` holds their first dense layers as what the steps
began with and outer products with the features of the rows of each gradient. So nothing is added
to a matrix of the layer's size, or subtracted from one, until the span is full.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import register_pytree_node

from engram.cohort.dense import Targets
from engram.cohort.in_turn import in_turn
from engram.cohort.round import Cohort, Outcome, Problem, TakesSteps
from engram.core.method import Method, Phase, Slots
from engram.core.optimizers import State
from engram.dense import FIRST, Examples
from engram.features import FeatureRows, Features
from engram.span import Full, Places, Span
from engram.types import Batch, Scale

__all__ = ["in_spans"]

_STEPS: Final = 3  # steps that a span has room for, as measured in benchmarks/NOTES.md


def in_spans(problem: Problem, cohort: Cohort, *, targets: Targets, features: Features) -> Outcome:
    """Trains a cohort's clients one after the other; see ``in_turn``.

    Args:
        problem: With the objective ``engram.core.objective.by_hand``. Its method's phases are
            affine, and its optimizer remembers nothing.
        cohort: The clients; their ``states`` must be empty.
        targets: Converts the data's targets to those of the loss.
        features: The layers before the dense ones.
    """
    spans = _Spans(targets, features)

    def build(scales: Mapping[str, Scale]) -> Method:
        method = problem.build(scales)
        begin, end = method.client.begin, method.client.end

        def begun(received: Slots, kept: Slots, batch: Batch | None) -> Slots:
            if batch is None:
                return begin(received, kept, None)
            given = {"received": received, "kept": kept}
            return spans.through(
                lambda x, some: begin(x["received"], x["kept"], *some), given, (batch,)
            )

        def ended(received: Slots, work: Slots) -> tuple[Slots, Slots]:
            return end(received, _weights(work))

        return method._replace(client=method.client._replace(begin=begun, end=ended))

    moves = _Moves(problem.stepper, spans)
    return in_turn(problem._replace(build=build, stepper=moves), cohort)


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

    def __init__(self, targets: Targets, features: Features) -> None:
        self._targets, self._features = targets, features
        self._span: Span | None = None
        self._places = Places(0)
        self._step = 0  # rows of a step's gradients, as far as they are known

    def through(
        self,
        function: Callable[[Slots, tuple[Examples, ...]], Slots],
        slots: Slots,
        batches: tuple[Batch, ...],
    ) -> Slots:
        """Calls ``function(slots, batches)`` and returns what it does, with ``_Held`` layers."""
        self._step = max(self._step, 2 * sum(len(y) for _, y in batches))
        slots = self._entered(slots)
        span, begun = self._span, self._places.used
        assert span is not None  # for mypy: they have entered it
        examples = tuple(self._examples(span, *batch) for batch in batches)
        try:
            found = function(_mapped(slots, lambda x: x.coordinates, lambda x: x[None]), examples)
        except Full:
            self._step *= 2
            return self.through(function, _weights(slots), batches)
        self._step = max(self._step, self._places.used - begun)
        return _mapped(found, partial(_Held, span), lambda x: x[0])

    def _entered(self, slots: Slots) -> Slots:
        """Returns slots with first layers in the present span, or in a new one."""
        room = self._places.room - self._places.used
        there = (isinstance(x, _Held) and x.span is self._span for x in _layers(slots))
        if room >= self._step and all(there):
            return slots
        slots = _weights(slots)
        bases = {id(x): x for x in _layers(slots)}
        some = next(iter(bases.values()))
        self._places = Places(_STEPS * self._step)
        rows = some.new_zeros(1, self._places.room, some.shape[1])
        span = self._span = Span(tuple(x[None] for x in bases.values()), rows)
        numbers = {key: number for number, key in enumerate(bases)}

        def held(base: Tensor) -> _Held:
            coordinates = span.base(numbers[id(base)])
            return _Held(span, functional.pad(coordinates, (0, 0, 0, self._places.room)))

        return _mapped(slots, held, lambda x: x)

    def _examples(self, span: Span, x: Tensor, y: Tensor) -> Examples:
        room = self._places.room
        rows = FeatureRows(self._features, span, self._places, x[None], room)
        return Examples(rows, self._targets(y)[None])


class _Moves(NamedTuple):
    """A ``Stepper`` whose steps are taken in spans."""

    stepper: TakesSteps
    spans: _Spans

    def take(
        self, phase: Phase, work: Slots, states: State, batches: tuple[Batch, ...]
    ) -> tuple[Slots, State]:
        """See ``Stepper.take``."""

        def step(work: Slots, batches: tuple[Batch, ...]) -> Slots:
            return self.stepper.take(phase, work, {}, batches)[0]

        return self.spans.through(step, work, batches), states


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
    """Yields the first layers in slots."""
    for name, x in slots.items():
        if isinstance(x, dict):
            yield from _layers(x)
        elif name == FIRST:
            yield x


def _mapped(slots: Slots, first: Callable[[Any], Any], other: Callable[[Tensor], Any]) -> Slots:
    """Returns slots with first layers and other arrays replaced by functions of them."""

    def mapped(name: str, x: Any) -> Any:
        if isinstance(x, dict):
            return _mapped(x, first, other)
        return first(x) if name == FIRST else other(x)

    return {name: mapped(name, x) for name, x in slots.items()}
