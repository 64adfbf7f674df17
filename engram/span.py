"""First layers of a cohort, stored by their displacement in the span of the rows they saw.

A gradient by the first layer's weight is a sum of outer products with input rows. So however a
rule adds and scales gradients, a client's weight stays in ::

    W0 + Delta' X,    Delta (n, out), X (n, in) the rows that the client draws in the round

with the initial weight W0 (out, in), as a rule common to all clients. It suffices to compute with
Delta: the outputs for rows x are
``x W0' + (x X') Delta``; a gradient is the gradient by the outputs, placed in the rows of Delta
that belong to its batch; and the Gram products ``X X'`` are computed for many steps at once. No
client needs an (out, in) matrix of its own until one is asked for. This pays off where n < in.
"""

from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional

from engram.dense import FIRST, FirstLayerCoordinates, PlainCoordinates
from engram.types import Params


class SpannedRows(NamedTuple):
    """Some rows in a span; ``dense.InputRows`` and ``dense.FirstLayer``.

    Attributes:
        common: Their outputs for the common weight, (c, k, out).
        gram: Their Gram products with the span's first m rows, (c, k, m): with all rows that can
            have moved the weights before these rows are used, and with themselves.
        start: Row of the span that is the first of them.
    """

    common: Tensor
    gram: Tensor
    start: int

    def narrow(self, start: int, stop: int) -> "SpannedRows":
        """See ``InputRows.part``."""
        at = slice(start, stop)
        return SpannedRows(self.common[:, at], self.gram[:, at], self.start + start)

    def fit(self, held: Tensor) -> Tensor:
        """See ``InputRows.fit``: with zeros for rows added since."""
        return functional.pad(held, (0, 0, 0, self.gram.shape[2] - held.shape[1]))

    def enter(self, w: Params) -> Self:
        """See ``InputRows.enter``."""
        del w
        return self

    def value(self, weight: Tensor) -> Tensor:
        """See ``FirstLayer.value``, of the weight ``W0 + weight' X``."""
        return torch.baddbmm(self.common, self.gram, weight)

    def jvp(self, direction: Tensor) -> Tensor:
        """See ``FirstLayer.jvp``, of ``direction' X``."""
        return torch.bmm(self.gram, direction)

    def vjp(self, delta: Tensor, weight: Tensor) -> Params:
        """See ``FirstLayer.vjp``."""
        result = torch.zeros_like(weight)
        result[:, self.start : self.start + delta.shape[1]] = delta
        return {FIRST: result}


class Span(NamedTuple):
    """A cohort's first layers, as ``dense.FirstLayerCoordinates``.

    Attributes:
        weight: The initial weight W0: a common one, (out, in), or one of each client, (c, out, in).
        rows: X, (c, held + n, in): the clients' own initial weights minus W0, if there are any,
            then the rows drawn.
        held: ``out`` if clients bring initial weights of their own, else 0.
    """

    weight: Tensor
    rows: Tensor
    held: int

    @property
    def drawn(self) -> Tensor:
        """See ``FirstLayerCoordinates.drawn``."""
        return self.rows[:, self.held :]

    def origin(self) -> Tensor:
        """See ``FirstLayerCoordinates.origin``: zeros (c, m, out), for the rows known so far."""
        return self.rows.new_zeros(len(self.rows), self.held, self.weight.shape[-2])

    def hold(self, weights: Tensor, clients: list[int]) -> Tensor:
        """See ``FirstLayerCoordinates.hold``: ``W0 + I' (weight - W0)``."""
        brought = self.rows[:, : self.held]
        brought.zero_()
        brought[clients] = weights - (self.weight if self._common else self.weight[clients])
        return torch.eye(self.held).to(weights).expand(len(clients), -1, -1)

    def see(self, start: int, stop: int) -> SpannedRows:
        """See ``FirstLayerCoordinates.see``."""
        start, stop = self.held + start, self.held + stop
        return self.look(self.rows[:, start:stop], start, stop)

    def see_others(self, x: Tensor) -> SpannedRows:
        """See ``FirstLayerCoordinates.see_others``."""
        return self.look(x, self.rows.shape[1], self.rows.shape[1])

    def weights(self, held: Tensor) -> Tensor:
        """See ``FirstLayerCoordinates.weights``."""
        weight = self.weight.unsqueeze(0) if self._common else self.weight
        return torch.baddbmm(weight, held.mT, self.rows)

    def mean(self, held: Tensor, shares: Tensor) -> Tensor:
        """See ``FirstLayerCoordinates.mean``, in one product over all clients' rows."""
        moved = (held * shares[:, None, None]).flatten(0, 1)
        return torch.addmm(self.weight, moved.T, self.rows.flatten(0, 1))

    def of(self, clients: list[int]) -> Self:
        """See ``FirstLayerCoordinates.of``."""
        weight = self.weight if self._common else self.weight[clients]
        return self._replace(weight=weight, rows=self.rows[clients])

    def narrow(self, clients: slice, weight: Tensor | None) -> Self:
        """See ``FirstLayerCoordinates.part``."""
        own = self.weight[clients] if weight is None else weight
        return self._replace(weight=own, rows=self.rows[clients])

    @property
    def _common(self) -> bool:
        return self.weight.ndim == 2

    def look(self, x: Tensor, start: int, known: int) -> SpannedRows:
        """Returns rows x (c, k, in), with Gram products against the span's first ``known`` rows.

        ``start`` is the place of x's first row in the span.
        """
        if self._common:
            common = (x.reshape(-1, x.shape[2]) @ self.weight.T).view(*x.shape[:2], -1)
        else:
            common = torch.bmm(x, self.weight.mT)
        gram = torch.bmm(x, self.rows[:, :known].mT)
        return SpannedRows(common, gram, start)


def make_coordinates(
    weight: Tensor, clients: int, drawn: int, *, brought: bool = False
) -> FirstLayerCoordinates:
    """Chooses how a cohort's first layers are stored, and allocates a buffer for its rows.

    Args:
        weight: The initial weight, (out, in), or one of each client, (c, out, in).
        clients: Number of clients.
        drawn: Number of rows that each client draws.
        brought: Whether any client starts from a weight of its own.
    """
    out, width = weight.shape[-2:]
    held = out if brought else 0
    if held + drawn < width:
        return Span(weight, weight.new_empty(clients, held + drawn, width), held)
    return PlainCoordinates(weight, weight.new_empty(clients, drawn, width))
