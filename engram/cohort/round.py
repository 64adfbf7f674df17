"""A cohort in a round, and the outcome of its training. Arrays have a leading client axis."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from engram.cohort.dense_gradients import FIRST, FirstLayerCoordinates
from engram.cohort.draws import Draws
from engram.core.method import Context, Method, Phase, Served, Slots
from engram.core.personal_parameters import build
from engram.core.settings import with_values
from engram.core.slot_optimizers import State
from engram.core.slots import over_slots
from engram.core.tree import concatenated, select
from engram.core.types import Batch, Params, Scale

Build = Callable[[Mapping[str, Scale]], Method]
"""``scales -> method``: builds the method with these settings replaced; see ``Cohort.scales``."""


def builder(settings: Any, context: Context) -> Build:
    """Returns ``Problem.build`` of a method's settings; without scales, it builds once."""
    whole = cache(lambda: build(settings, context))

    def built(scales: Mapping[str, Scale]) -> Method:
        return build(with_values(settings, scales), context) if scales else whole()

    return built


class Problem(NamedTuple):
    """The method and the loss that clients train on, in one way to train them."""

    build: Build  # builds the method on an objective of this way
    # Takes a local step: see ``engram.core.rounds.Stepper.take``.
    take: Callable[[Phase, Slots, State, tuple[Batch, ...]], tuple[Slots, State]]
    # ``(params, batch[, shift]) -> ()``: the training loss that is reported, of a model.
    loss: Callable[..., Tensor]

    def reported(self, served: Served, batch: Batch) -> Tensor:
        """Returns the training loss of a client's served model on a batch."""
        if len(served.models) == 1:
            shift = () if served.shift is None else (served.shift,)
            found: Tensor = self.loss(served.models[0], batch, *shift)
            return found
        from engram.scoring.mixtures import loss_of  # noqa: PLC0415 - few methods have mixtures

        return loss_of(served, self.loss, batch)


class Cohort(NamedTuple):
    """Clients that train in a round, all of which keep slots of the same names and shapes.

    Attributes:
        common: Slots that all clients receive alike, without a client axis.
        own: Slots of which each client receives its own.
        kept: Slots that clients keep from former rounds.
        states: The optimizer's states that clients keep, by slot, for each phase; empty for new
            states.
        draws: Rows that they train on.
        scales: Values of settings that differ between clients of several runs, (c,), by the name
            of the method's field.
        losses: Whether training losses are computed, which takes a forward pass for each client.
    """

    common: Slots
    own: Slots
    kept: Slots
    states: Sequence[State]
    draws: Draws
    scales: Params = {}  # noqa: RUF012 - a NamedTuple's default, which nobody changes
    losses: bool = True

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.draws.rows)

    def of(self, some: list[int]) -> Self:
        """Returns the clients at these positions as a cohort."""
        whole = self.own, self.kept, [*self.states], self.scales
        own, kept, states, scales = select(whole, some)
        return self._replace(
            own=own, kept=kept, states=states, scales=scales, draws=self.draws.of(some)
        )


class Held(NamedTuple):
    """Slots of several clients, with first dense layers in any coordinates."""

    slots: Slots  # each array with a leading client axis
    # Coordinates of the arrays called ``dense0.weight``; None if these are weights.
    coordinates: FirstLayerCoordinates | None = None

    def of(self, clients: list[int] | slice, weight: Tensor | None = None) -> Self:
        """Returns the slots of the clients at these positions.

        Args:
            clients: The positions.
            weight: The first layer at which all of them began; None if they began apart.
        """
        return self._replace(
            slots=select(self.slots, clients),
            coordinates=self.coordinates and self.coordinates.of(clients, weight),
        )

    def stack(self) -> Slots:
        """Returns the slots with first layers as weights."""
        held = self.coordinates
        if held is None:
            return self.slots
        return {
            slot: x | {FIRST: held.weights(x[FIRST])} if isinstance(x, dict) and FIRST in x else x
            for slot, x in self.slots.items()
        }

    def mean(self, shares: Tensor) -> Slots:
        """Returns the mean over clients, weighted by shares (c,) that add up to 1."""
        held, mean = self.coordinates, partial(torch.tensordot, shares, dims=1)
        found: Slots = {}
        for slot, x in self.slots.items():
            if held is not None and isinstance(x, dict) and FIRST in x:
                first = held.mean(x[FIRST], shares)
                found[slot] = {n: first if n == FIRST else mean(leaf) for n, leaf in x.items()}
            else:
                found |= over_slots(mean, {slot: x})
        return found


class Outcome(NamedTuple):
    """The outcome of a cohort's round."""

    sent: Held  # slots that leave the clients
    kept: Held  # slots that they keep
    # The optimizer's states after the round, by slot, for each phase; empty if the way to train
    # does not return them.
    states: Sequence[State]
    # Training losses of the models that serve them, on their last batch; may be empty.
    losses: list[float]
    # The step, from 1, at which a client's slots or loss became non-finite, by the client's
    # position; 0 if the step is not known.
    broken: dict[int, int]

    def narrow(self, clients: slice, weight: Tensor | None) -> Self:
        """Returns the outcome of consecutive clients; see ``Held.of``."""
        return self._replace(
            sent=self.sent.of(clients, weight),
            kept=self.kept.of(clients, weight),
            states=select([*self.states], clients),
            losses=self.losses[clients],
            broken={
                i - clients.start: step
                for i, step in self.broken.items()
                if clients.start <= i < clients.stop
            },
        )


class ClientRaised(Exception):
    """An error of a client's training, which is this one's ``__cause__``.

    Attributes:
        position: The client's position in the cohort.
        step: The local step, from 1; 0 before the first one.
    """

    def __init__(self, position: int, step: int) -> None:
        super().__init__(f"client at position {position}, step {step}")
        self.position, self.step = position, step


def joined(parts: Sequence[Outcome], groups: Sequence[Sequence[int]]) -> Outcome:
    """Joins the outcomes of groups of clients into one, in the order of their positions."""
    order = np.argsort(np.concatenate([np.asarray(some) for some in groups])).tolist()

    def join(trees: Sequence[Any]) -> Any:
        return select(concatenated(trees), order)

    losses = [loss for part in parts for loss in part.losses]
    return Outcome(
        Held(join([part.sent.stack() for part in parts])),
        Held(join([part.kept.stack() for part in parts])),
        join([list(part.states) for part in parts]),
        [losses[i] for i in order] if losses else [],
        {
            some[i]: h
            for some, part in zip(groups, parts, strict=True)
            for i, h in part.broken.items()
        },
    )
