"""The rows that a cohort draws in a round, and the batches of its steps."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from engram.core.arrays import Ints
from engram.core.types import Batch, Sampled
from engram.data.augmentations import Augmentation
from engram.data.federated import augmented

Who = slice | Tensor
"""Positions of clients in a cohort; ``ALL`` for all of them."""

ALL: Final = slice(None)


class Rows(Protocol):
    """Rows of many clients, by number."""

    def take(self, rows: Tensor, out: Tensor | None = None) -> tuple[Any, Tensor]:
        """Returns inputs and targets of rows (..., k), written to ``out`` if it is given."""


class Step(NamedTuple):
    """A step that c clients of a cohort take together."""

    who: Who  # the clients' positions
    # The step's batches: inputs (c, k, ...), targets (c, k, ...), and keys of dropout (c,) where
    # the network has it.
    batches: tuple[Batch, ...]
    phase: int  # the index of the step's phase
    last: bool  # whether it is these clients' last step of the round


class Sample(NamedTuple):
    """Poisson samples of clients' rows, in the place of batches, and the noise of their steps."""

    taken: Tensor  # 1 for a row that was drawn, 0 for padding; (c, n)
    expected: Tensor  # the expected number of rows in a batch, (c,)
    # ``step -> (d,)`` of each client: standard normal numbers for a step, from 1.
    normal: Sequence[Callable[[int], Tensor]]

    def of(self, some: list[int]) -> Self:
        """Returns the samples of the clients at these positions."""
        normal = [self.normal[i] for i in some]
        return self._replace(taken=self.taken[some], expected=self.expected[some], normal=normal)


class Draws(NamedTuple):
    """The rows that a cohort draws in a round.

    Attributes:
        split: The rows to draw from.
        rows: Row numbers, (c, n): the initial batch, then the batches of each step in turn.
        initial: Rows of the initial batch; 0 if there is none.
        batches: Batches in a step.
        size: Rows in a batch.
        augment: The augmentation that changes rows at random; None if there is none.
        seeds: Seeds of the augmentation of each row, (c, n); None without augmentation.
        keys: Keys of dropout for each batch, (c, 1 + batches of all steps): the first is the
            initial batch's, whether or not there is one. Of samples they are each row's, (c, 1 +
            batches, size). None for a network without dropout.
        sizes: Number of rows in each batch of a step, (c, steps), the others being padding; 0
            after the client's last step. None if all batches have ``size`` rows.
        starts: The step at which each phase of each client begins, (c, phases).
        sample: Where each batch is a Poisson sample; None for batches of ``size`` rows.
    """

    split: Rows
    rows: Tensor
    initial: int
    batches: int
    size: int
    augment: Augmentation | None = None
    seeds: Tensor | None = None
    keys: Tensor | None = None
    sizes: Ints | None = None
    starts: Ints = np.zeros((1, 1), dtype=np.int64)
    sample: Sample | None = None

    @property
    def steps(self) -> int:
        """Steps of the client that has most of them."""
        return (self.rows.shape[1] - self.initial) // (self.batches * self.size)

    def of(self, some: list[int]) -> Self:
        """Returns the draws of the clients at these positions."""
        return self._replace(
            rows=self.rows[some],
            seeds=None if self.seeds is None else self.seeds[some],
            keys=None if self.keys is None else self.keys[some],
            sizes=None if self.sizes is None else self.sizes[some],
            starts=self.starts[some],
            sample=self.sample and self.sample.of(some),
        )

    def first(self, steps: int) -> Self:
        """Returns the draws of the first steps alone."""
        drawn = self.initial + steps * self.batches * self.size
        return self._replace(
            rows=self.rows[:, :drawn],
            seeds=None if self.seeds is None else self.seeds[:, :drawn],
            keys=None if self.keys is None else self.keys[:, : 1 + steps * self.batches],
            sizes=None if self.sizes is None else self.sizes[:, :steps],
        )

    def take(
        self, who: Who, start: int, stop: int, out: Tensor | None = None
    ) -> tuple[Any, Tensor]:
        """Gathers drawn rows start to stop of these clients, augmented; see ``Rows.take``."""
        rows = self.rows[who, start:stop]
        if self.augment is None or self.seeds is None:
            return self.split.take(rows, out)
        x, y = self.split.take(rows)
        x = augmented(self.augment, x, self.seeds[who, start:stop])
        return (x if out is None else out.copy_(x.flatten(2))), y

    def each_step(self) -> Iterator[Step]:
        """Yields the steps in order; clients with other batch sizes take separate steps."""
        for h in range(self.steps):
            for who, size, phase, last in self._alike(h):
                first = h * self.batches
                starts = (self.initial + (first + b) * self.size for b in range(self.batches))
                batches = (self._batch(who, at, size, first + b + 1) for b, at in enumerate(starts))
                yield Step(who, tuple(batches), phase, last)

    def initial_batch(self) -> Batch | None:
        """Returns the batch that ``Client.begin`` reads; None if it reads none."""
        return self._batch(ALL, 0, self.initial, 0) if self.initial else None

    def phase(self, h: int) -> int:
        """Returns the phase of step h of a cohort with equally many steps each."""
        return int((self.starts[0] <= h).sum()) - 1

    def _alike(self, h: int) -> Iterator[tuple[Who, int, int, bool]]:
        """Yields clients that have a step h, by batch size, phase, and whether it is their last."""
        if self.sizes is None:
            yield ALL, self.size, self.phase(h), h + 1 == self.steps
            return
        final = (self.sizes > 0).sum(1) == h + 1
        phases = (self.starts <= h).sum(1) - 1
        kinds = np.stack([self.sizes[:, h], phases, final], 1)
        for size, phase, last in np.unique(kinds[self.sizes[:, h] > 0], axis=0).tolist():
            who = np.flatnonzero((kinds == [size, phase, last]).all(1))
            every = len(who) == len(kinds)
            some = ALL if every else torch.from_numpy(who).to(self.rows.device)
            yield some, size, phase, bool(last)

    def _batch(self, who: Who, start: int, size: int, number: int) -> Batch:
        taken = self.take(who, start, start + size)
        batch = taken if self.keys is None else (*taken, self.keys[who, number])
        if self.sample is None:
            return batch
        drawn, expected, normal = self.sample  # of all clients, whose batches have one size
        noise = torch.stack([draw(number) for draw in normal]).to(drawn)
        return Sampled(batch, drawn[:, start : start + size], noise, expected)


class Chunk(NamedTuple):
    """Consecutive drawn rows: whole steps, and the initial batch in the first chunk."""

    start: int  # number of the first row
    stop: int  # number of the last row, plus 1
    # Rows of each batch, and their parts in its mean, (c, k); None if these are 1 / k.
    batches: list[tuple[int, Tensor | None]]


class Steps(NamedTuple):
    """The steps of clients that are trained together."""

    # Their draws: row numbers are the initial batch, then the batches of each step in turn; those
    # of a step are alike in size, which ``widths`` has, and not ``size``.
    draws: Draws
    widths: list[int]  # rows in a batch of each step
    # Rows of each client's batches, without padding, (c, steps); None if there is none.
    counts: Ints | None = None
    ends: Ints | None = None  # number of steps of each client, (c,); None if all have equally many

    def chunks(self, least: int) -> Iterator[Chunk]:
        """Yields the rows in order, in chunks of at least ``least`` rows, but for the last one."""
        draws, start, stop = self.draws, 0, 0
        batches: list[tuple[int, Tensor | None]] = []
        for h, width in enumerate([draws.initial, *self.widths], start=-1):
            each = [(width, self._shares(h))] * draws.batches if h >= 0 else [(width, None)]
            batches += each if width else []
            stop += width * len(each)
            if stop - start >= least or stop == draws.rows.shape[1]:
                yield Chunk(start, stop, batches)
                start, batches = stop, []

    def _shares(self, h: int) -> Tensor | None:
        """Returns the parts of rows in the means of a step's batches; see ``Chunk.batches``."""
        if self.counts is None:
            return None
        counts = self.counts[:, h, None]
        shares = (np.arange(counts.max()) < counts) / counts
        return torch.from_numpy(shares.astype(np.float32)).to(self.draws.rows.device)

    def moved(self, h: int, after: Any, before: Any) -> Any:
        """Returns the state after step h, from 0: ``after`` for clients with the step."""
        if self.ends is None or (self.ends > h).all():
            return after
        moves = torch.from_numpy(self.ends > h).to(self.draws.rows.device)

        def chosen(new: Tensor, old: Tensor) -> Tensor:
            return torch.where(moves.view(-1, *[1] * (new.ndim - 1)), new, old)

        return tree_map(chosen, after, before)


# --- Batches of different sizes ------------------------------------------------------------------

# A batch is padded with its last row, which has no part in the mean. A client that is done repeats
# its last step, which does not move it.

_LEAST: Final = 0.75  # of the steps times the batch of its group, those of each client


def arranged(draws: Draws) -> Steps:
    """Arranges the steps of all clients of these draws, which have ``sizes``."""
    sizes = draws.sizes
    assert sizes is not None  # for mypy: others need not be arranged
    clients, ends = len(draws.rows), (sizes > 0).sum(1)
    taken = np.minimum(np.arange(ends.max()), ends[:, None] - 1)  # the last one, once done
    counts = np.take_along_axis(sizes, taken, axis=1)
    numbers = [np.broadcast_to(np.arange(draws.initial), (clients, draws.initial))]
    for h, k in enumerate(counts.max(0)):
        row = np.minimum(np.arange(k), counts[:, h, None] - 1)  # the last one as padding
        batch = taken[:, h, None] * draws.batches + np.arange(draws.batches)
        found = draws.initial + batch[:, :, None] * draws.size + row[:, None]
        numbers.append(found.reshape(clients, -1))
    at = torch.from_numpy(np.concatenate(numbers, 1)).to(draws.rows.device)
    seeds = None if draws.seeds is None else draws.seeds.gather(1, at)
    packed = draws._replace(rows=draws.rows.gather(1, at), seeds=seeds, sizes=None)
    padded, unlike = np.ptp(counts, axis=0).any(), np.ptp(ends)
    return Steps(
        packed, counts.max(0).tolist(), counts if padded else None, ends if unlike else None
    )


def groups(draws: Draws, *, padded: bool) -> list[list[int]]:
    """Returns positions of clients to train together, in groups.

    Args:
        draws: The clients' draws, which have ``sizes``.
        padded: Whether clients of a group may differ in their batches: then by so little that
            most rows are not padding. Their phases begin at the same steps.
    """
    sizes = draws.sizes
    assert sizes is not None  # for mypy: others are all alike
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
