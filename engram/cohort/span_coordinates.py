"""First layers of a cohort, stored by their displacement in the span of the rows they saw.

A gradient by the first layer's weight is a sum of outer products with input rows. So however a
rule adds and scales gradients, models and control variates, a client's weight stays in ::

    diag(a_1) B_1 + ... + diag(a_b) B_b + Delta' X,    Delta (n, out), X (n, in)

with the *bases* B_j (out, in) that clients begin with, common ones or each client's own, and the
rows X that the client draws in the round. It suffices to compute with the coordinates, a on top of
Delta, (b + n, out): the outputs for rows x are ``sum_j (x B_j') diag(a_j) + (x X') Delta``; a
gradient is the gradient by the outputs, placed in the rows of Delta that belong to its batch; and
the products ``x B_j'`` and ``X X'`` are computed for many steps at once. A base starts as a_j = 1,
the others 0; so models and differences of models are held alike. No client needs an (out, in)
matrix of its own until one is asked for. ``longest`` says where this pays off.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional

from engram.cohort.dense_gradients import FIRST, FirstLayerCoordinates, PlainCoordinates, linear
from engram.core.types import Params

# As measured in benchmarks/NOTES.md, in the time of a Gram product of a number:
_PRODUCTS: Final = 1.2  # those of a batch's row with the weights
_PASSES: Final = 26.0  # memory's for a batch
_FEW: Final = 16  # times fewer rows than outputs are few


class SpannedRows(NamedTuple):
    """Some rows in a span; ``dense.InputRows`` and ``dense.FirstLayer``."""

    # Their outputs for bases, (c, k, out), by the base's number; those that no weight has a part in
    # may be missing.
    of_bases: dict[int, Tensor]
    # Their Gram products with the span's first m rows, (c, k, m): with all rows that can have moved
    # the weights before these rows are used, and with themselves.
    gram: Tensor
    start: int  # coordinate that belongs to the first of them
    known: int  # number of coordinates, b + m

    def narrow(self, start: int, stop: int) -> "SpannedRows":
        """See ``InputRows.narrow``."""
        at = slice(start, stop)
        of_bases = {j: outputs[:, at] for j, outputs in self.of_bases.items()}
        return SpannedRows(of_bases, self.gram[:, at], self.start + start, self.known)

    def fit(self, held: Tensor) -> Tensor:
        """See ``InputRows.fit``: with zeros for rows added since."""
        new = self.known - held.shape[1]
        return functional.pad(held, (0, 0, 0, new)) if new else held  # it would copy nonetheless

    def enter(self, w: Params) -> Self:
        """See ``InputRows.enter``."""
        del w
        return self

    def value(self, weight: Tensor, bias: Tensor) -> Tensor:
        """See ``FirstLayer.value``."""
        found = bias.unsqueeze(1)
        for j, outputs in self.of_bases.items():
            found = torch.addcmul(found, outputs, weight[:, j : j + 1])
        return torch.baddbmm(found, self.gram, weight[:, -self.gram.shape[2] :])

    def jvp(self, direction: Tensor, bias: Tensor) -> Tensor:
        """See ``FirstLayer.jvp``."""
        return self.value(direction, bias)  # which is linear

    def vjp(self, delta: Tensor, weight: Tensor) -> Params:
        """See ``FirstLayer.vjp``."""
        result = torch.zeros_like(weight)
        result[:, self.start : self.start + delta.shape[1]] = delta
        return {FIRST: result}


class Span(NamedTuple):
    """A cohort's first layers, as ``dense.FirstLayerCoordinates``."""

    # The weights that clients begin with: a common one, (out, in), or each client's, (c, out, in).
    bases: tuple[Tensor, ...]
    rows: Tensor  # X, (c, n, in): the rows drawn
    unread: frozenset[int] = frozenset()  # numbers of bases of which no output is asked for

    @property
    def drawn(self) -> Tensor:
        """See ``FirstLayerCoordinates.drawn``."""
        return self.rows

    def base(self, number: int) -> Tensor:
        """See ``FirstLayerCoordinates.base``: (c, b, out), before any row is known."""
        out = self.bases[0].shape[-2]
        held = self.rows.new_zeros(len(self.rows), len(self.bases), out)
        held[:, number] = 1.0
        return held

    def reading(self, held: Sequence[Tensor]) -> Self:
        """See ``FirstLayerCoordinates.reading``."""
        there = {j for j in range(len(self.bases)) if any(x[:, j].any() for x in held)}
        return self._replace(unread=frozenset(range(len(self.bases))) - there)

    def see(self, start: int, stop: int) -> SpannedRows:
        """See ``FirstLayerCoordinates.see``."""
        return self.look(self.rows[:, start:stop], start, stop)

    def see_others(self, x: Tensor) -> SpannedRows:
        """See ``FirstLayerCoordinates.see_others``."""
        return self.look(x, self.rows.shape[1], self.rows.shape[1])

    def weights(self, held: Tensor) -> Tensor:
        """See ``FirstLayerCoordinates.weights``."""
        b = len(self.bases)
        there = [j for j in range(b) if held[:, j].any()]
        if len(there) == 1 and (held[:, there[0]] == 1).all():
            base = self.bases[there[0]]
            if not held[:, b:].any():
                return base if base.ndim == 3 else base.expand(len(held), *base.shape)
            return torch.baddbmm(base, held[:, b:].mT, self.rows)
        found = torch.bmm(held[:, len(self.bases) :].mT, self.rows)
        for j, base in enumerate(self.bases):
            if held[:, j].any():
                found.addcmul_(base, held[:, j].unsqueeze(-1))
        return found

    def mean(self, held: Tensor, shares: Tensor) -> Tensor:
        """See ``FirstLayerCoordinates.mean``, in one product over all clients' rows."""
        shared = held * shares[:, None, None]
        found = shared[:, len(self.bases) :].flatten(0, 1).T @ self.rows.flatten(0, 1)
        for j, base in enumerate(self.bases):
            if not held[:, j].any():
                continue
            if base.ndim == 2:
                # From one client's on, so that rounded shares do not scale a weight of all.
                one = held[0, j]
                found.addcmul_(base, (one + shares @ (held[:, j] - one)).unsqueeze(-1))
            else:
                found += torch.einsum("co,coi->oi", shared[:, j], base)
        return found

    def of(self, clients: list[int] | slice, weight: Tensor | None = None) -> Self:
        """See ``FirstLayerCoordinates.of``."""
        first, *others = (base if base.ndim == 2 else base[clients] for base in self.bases)
        bases = (first if weight is None else weight, *others)
        return self._replace(bases=bases, rows=self.rows[clients])

    def look(self, x: Tensor, start: int, known: int) -> SpannedRows:
        """Returns rows x (c, k, in), with Gram products against the span's first ``known`` rows.

        ``start`` is the place of x's first row in the span.
        """
        of_bases = {
            j: linear(partial(_outputs, base), x)
            for j, base in enumerate(self.bases)
            if j not in self.unread
        }
        gram, b = torch.bmm(x, self.rows[:, :known].mT), len(self.bases)
        return SpannedRows(of_bases, gram, b + start, b + known)

    def pull(self, delta: Tensor, held: Tensor) -> Tensor:
        """Returns the gradient (c, k, in) by rows, of ``delta``, that by their outputs."""
        b = len(self.bases)
        known = self.rows[:, : held.shape[1] - b]
        found = torch.bmm(torch.bmm(delta, held[:, b:].mT), known)
        for j, base in enumerate(self.bases):
            if j not in self.unread:
                found += linear(base.__rmatmul__, delta * held[:, j : j + 1])
        return found


class Full(Exception):
    """A span has no room for the rows of another gradient."""


class Places:
    """Places in a span for the rows of gradients; the first ``used`` are taken."""

    def __init__(self, room: int) -> None:
        self.room, self.used = room, 0

    def take(self, count: int) -> int:
        """Takes so many places, and returns the first one's number.

        Raises:
            Full: There are not as many left.
        """
        if self.used + count > self.room:
            raise Full
        self.used += count
        return self.used - count


def _outputs(weight: Tensor, x: Tensor) -> Tensor:
    if weight.ndim == 2:
        return (x.reshape(-1, x.shape[2]) @ weight.T).view(*x.shape[:2], -1)
    if _FEW * x.shape[1] <= weight.shape[1]:  # so that the larger factor is read in its order
        return torch.bmm(weight, x.mT).mT
    return torch.bmm(x, weight.mT)


def longest(out: int, width: int, size: int) -> int:
    """Returns the largest number of rows at which a span is cheaper than the weights.

    Its Gram products grow with the square of the rows, where weights take two products of each
    batch with them, and some passes of memory.

    Args:
        out: Outputs of the layer.
        width: Inputs.
        size: Rows of a batch.
    """
    return min(width - 1, int(out * (_PRODUCTS + _PASSES / size)))


def make_coordinates(
    bases: Sequence[Tensor], clients: int, drawn: int, *, size: int, most: int | None = None
) -> FirstLayerCoordinates:
    """Chooses how a cohort's first layers are stored, and allocates a buffer for its rows.

    Args:
        bases: The weights that clients begin with, each (out, in), or one of each client,
            (c, out, in).
        clients: Number of clients.
        drawn: Number of rows that each client draws.
        size: Rows of a batch.
        most: Rows that the buffer of plain coordinates has room for; by default ``drawn``.
    """
    out, width = bases[0].shape[-2:]
    if out * (len(bases) - 1) + drawn <= longest(out, width, size):
        return Span(tuple(bases), bases[0].new_empty(clients, drawn, width))
    return PlainCoordinates(tuple(bases), bases[0].new_empty(clients, most or drawn, width))
