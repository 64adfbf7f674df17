"""The inputs and the outcome of a cohort's round. All that is a client's has a leading axis."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from engram.cohort.draws import Draws
from engram.core.method import Method, Served, Slots
from engram.core.optimizers import State
from engram.core.rounds import Stepper
from engram.core.slots import over_slots
from engram.dense import FIRST, FirstLayerCoordinates
from engram.mixtures import loss_of
from engram.types import Batch, Params, Scale

__all__ = ["Build", "ClientRaised", "CohortTask", "Held", "Outcome", "Problem", "stacked"]

Build = Callable[[Mapping[str, Scale]], Method]
"""Builds the method with some of its settings replaced: see ``CohortTask.scales``."""


class Problem(NamedTuple):
    """The method and the loss that clients train on, in one way to train them.

    Attributes:
        build: Builds the method on an objective of this way.
        stepper: Takes local steps.
        loss: ``(params, batch, shift) -> ()``, the reported loss of a model on a batch.
    """

    build: Build
    stepper: Stepper
    loss: Callable[..., Tensor]

    def reported(self, served: Served, batch: Batch) -> Tensor:
        """Returns the loss of the model, or models, that serve a client."""
        if len(served.models) == 1:
            shift = () if served.shift is None else (served.shift,)
            found: Tensor = self.loss(served.models[0], batch, *shift)
            return found
        return loss_of(served, self.loss, batch)


class CohortTask(NamedTuple):
    """The inputs of a cohort's round, whose clients keep the same slots.

    Attributes:
        common: Slots that all clients receive alike, without a client axis.
        own: Slots of which each client receives its own.
        kept: What clients keep.
        states: By phase, the optimizer's states by slot that clients keep; empty for new ones.
        draws: The rows that the cohort trains on.
        scales: Settings that differ between clients, where they belong to several runs: by field
            of the method, (c,).
        losses: Whether their training losses are wanted, which take a forward pass of each.
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
        """Returns the inputs of some clients, by position."""
        mine: Any = tree_map(
            lambda leaf: leaf[some], (self.own, self.kept, list(self.states), self.scales)
        )
        own, kept, states, scales = mine
        return self._replace(
            own=own, kept=kept, states=states, scales=scales, draws=self.draws.of(some)
        )


class Held(NamedTuple):
    """Slots of several clients, with first layers in any coordinates.

    Attributes:
        slots: The slots, each array with a leading client axis.
        coordinates: Those of arrays called ``dense0.weight``; None if they are held as they are.
    """

    slots: Slots
    coordinates: FirstLayerCoordinates | None = None

    def of(self, clients: list[int]) -> Self:
        """Returns the slots of some clients, by position."""
        return self._replace(
            slots=over_slots(lambda leaf: leaf[clients], self.slots),
            coordinates=self.coordinates and self.coordinates.of(clients),
        )

    def part(self, clients: slice, weight: Tensor | None) -> Self:
        """Returns the slots of clients whose first layers began at one weight; None: at others."""
        return self._replace(
            slots=over_slots(lambda leaf: leaf[clients], self.slots),
            coordinates=self.coordinates and self.coordinates.part(clients, weight),
        )

    def stack(self) -> Slots:
        """Returns the slots' arrays, with a leading client axis."""
        held = self.coordinates
        if held is None:
            return self.slots
        return {
            slot: {n: held.weights(leaf) if n == FIRST else leaf for n, leaf in x.items()}
            if isinstance(x, dict)
            else x
            for slot, x in self.slots.items()
        }

    def mean(self, shares: Tensor) -> Slots:
        """Returns the weighted mean over clients; the shares (c,) add up to 1."""
        held = self.coordinates

        def mean(leaf: Tensor) -> Tensor:
            found: Tensor = torch.tensordot(shares, leaf, dims=1)
            return found

        found = over_slots(
            mean,
            {
                slot: {n: leaf for n, leaf in x.items() if held is None or n != FIRST}
                if isinstance(x, dict)
                else x
                for slot, x in self.slots.items()
            },
        )
        if held is None:
            return found
        for slot, x in self.slots.items():
            if isinstance(x, dict) and FIRST in x:
                first = held.mean(x[FIRST], shares)
                found[slot] = {n: first if n == FIRST else found[slot][n] for n in x}
        return found


class Outcome(NamedTuple):
    """The outcome of a cohort's round.

    Attributes:
        sent: What leaves the clients.
        kept: What they keep.
        states: By phase, the optimizer's states by slot; empty if the way keeps none.
        losses: The losses of the models that serve them on the last batch; empty if not wanted.
        broken: Clients whose slots or loss became non-finite: by position, the step at which it
            happened (from 1; 0 if it is not known).
    """

    sent: Held
    kept: Held
    states: Sequence[State]
    losses: list[float]
    broken: dict[int, int]

    def part(self, clients: slice, weight: Tensor | None) -> Self:
        """Returns the outcome of some clients; see ``Held.part``."""
        states: Any = [tree_map(lambda leaf: leaf[clients], x) if x else x for x in self.states]
        return self._replace(
            sent=self.sent.part(clients, weight),
            kept=self.kept.part(clients, weight),
            states=states,
            losses=self.losses[clients],
            broken={
                i - clients.start: step
                for i, step in self.broken.items()
                if clients.start <= i < clients.stop
            },
        )


class ClientRaised(Exception):
    """A client's local round raised an error, which is the cause of this one.

    Attributes:
        position: The client's position in the cohort.
        step: The local step, from 1; 0 if it was before the first.
    """

    def __init__(self, position: int, step: int) -> None:
        super().__init__(f"client at position {position}, step {step}")
        self.position, self.step = position, step


def stacked(trees: Sequence[Any]) -> Any:
    """Returns trees of tensors as one, with a leading axis."""
    first = trees[0]
    return tree_map(lambda *leaves: torch.stack(leaves), *trees) if first else first
