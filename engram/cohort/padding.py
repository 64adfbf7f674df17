"""Arranges clients whose batches differ in size and number so that each step trains many at once.

A batch is padded with its last row, which has no part in the mean. A client that is done repeats
its last step, which does not move it.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from engram.arrays import Ints
from engram.cohort.draws import Draws

_LEAST: Final = 0.75  # of the rows that a client has in its group, those that it needs


class Chunk(NamedTuple):
    """Consecutive drawn rows: whole steps, and the initial batch in the first chunk.

    Attributes:
        start: Number of the first row.
        stop: Number of the last row, plus 1.
        batches: Rows of each batch, and their parts in its mean, (c, k); None if these are 1 / k.
    """

    start: int
    stop: int
    batches: list[tuple[int, Tensor | None]]


class Steps(NamedTuple):
    """The steps of clients that are trained together.

    Attributes:
        draws: Their draws: row numbers are the initial batch, then the batches of each step in
            turn, with those of a step alike in size.
        counts: Rows of each client's batches, without padding, (c, steps).
        ends: Number of steps of each client, (c,).
    """

    draws: Draws
    counts: Ints
    ends: Ints

    @classmethod
    def of(cls, draws: Draws) -> Self:
        """Arranges the steps of all clients of these draws."""
        clients, steps = len(draws.rows), draws.steps
        if draws.sizes is None:
            counts = np.full((clients, steps), draws.size)
            return cls(draws, counts, np.full(clients, steps))
        ends = (draws.sizes > 0).sum(1)
        taken = np.minimum(np.arange(ends.max()), ends[:, None] - 1)  # the last one, once done
        counts = np.take_along_axis(draws.sizes, taken, axis=1)
        first = np.arange(draws.initial)
        numbers = [np.broadcast_to(first, (clients, draws.initial))]
        for h, k in enumerate(counts.max(0)):
            row = np.minimum(np.arange(k), counts[:, h, None] - 1)  # the last one as padding
            batch = taken[:, h, None] * draws.batches + np.arange(draws.batches)
            found = draws.initial + batch[:, :, None] * draws.size + row[:, None]
            numbers.append(found.reshape(clients, -1))
        at = torch.from_numpy(np.concatenate(numbers, 1)).to(draws.rows.device)
        seeds = None if draws.seeds is None else draws.seeds.gather(1, at)
        packed = draws._replace(rows=draws.rows.gather(1, at), seeds=seeds, sizes=None)
        return cls(packed, counts, ends)

    @property
    def widths(self) -> Ints:
        """Rows of a batch of each step, (steps,)."""
        widths: Ints = self.counts.max(0)
        return widths

    def chunks(self, least: int) -> Iterator[Chunk]:
        """Yields the rows in order, in chunks of at least ``least`` rows, but for the last one."""
        draws, start, stop = self.draws, 0, 0
        batches: list[tuple[int, Tensor | None]] = []
        for h, width in enumerate([draws.initial, *self.widths.tolist()], start=-1):
            each = [(width, self._shares(h))] * draws.batches if h >= 0 else [(width, None)]
            batches += each if width else []
            stop += width * len(each)
            if stop - start >= least or stop == draws.rows.shape[1]:
                yield Chunk(start, stop, batches)
                start, batches = stop, []

    def _shares(self, h: int) -> Tensor | None:
        """Returns the parts of rows in the means of a step's batches; see ``Chunk.batches``."""
        counts = self.counts[:, h, None]
        if np.ptp(counts) == 0:
            return None
        shares = (np.arange(counts.max()) < counts) / counts
        return torch.from_numpy(shares.astype(np.float32)).to(self.draws.rows.device)

    def moved(self, h: int, after: Any, before: Any) -> Any:
        """Returns what step h, from 0, made of ``before``, for clients that have such a step."""
        if (self.ends > h).all():
            return after
        moves = torch.from_numpy(self.ends > h).to(self.draws.rows.device)

        def chosen(new: Tensor, old: Tensor) -> Tensor:
            return torch.where(moves.view(-1, *[1] * (new.ndim - 1)), new, old)

        return tree_map(chosen, after, before)


def groups(draws: Draws, *, padded: bool) -> list[list[int]]:
    """Returns positions of clients to train together, in groups.

    Args:
        draws: The clients' draws.
        padded: Whether clients of a group may differ in their batches: then by so little that
            most rows are not padding. Their phases begin at the same steps.
    """
    sizes = draws.sizes
    if sizes is None:
        return [list(range(len(draws.rows)))]
    if not padded:
        _, kinds = np.unique(sizes, axis=0, return_inverse=True)
        return [np.flatnonzero(kinds.ravel() == kind).tolist() for kind in range(kinds.max() + 1)]
    steps, widths = (sizes > 0).sum(1), sizes.max(1)
    found: list[list[int]] = []
    for i in np.lexsort((widths, steps))[::-1].tolist():
        if found:
            first = found[-1][0]  # has the most steps
            width = max(widths[i], widths[found[-1]].max())
            full = steps[i] * widths[i] >= _LEAST * steps[first] * width
        if not found or not full or (draws.starts[i] != draws.starts[first]).any():
            found.append([])
        found[-1].append(i)
    return [sorted(some) for some in found]
