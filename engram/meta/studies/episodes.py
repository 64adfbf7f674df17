"""Draws the tasks of a sweep's iterations, and the uniform numbers that rows are made from.

Everything is a function of (seed, iteration): runs that differ only in their step sizes, and
algorithms that draw the same amounts in an iteration, see the same tasks and rows.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engram.core.streams import Stream, generator
from engram.meta.single_node import Draw

_BLOCK: Final = 64  # iterations drawn at once; never change it: results depend on it


class Drawn(NamedTuple):
    """One draw, for every run."""

    tasks: Tensor  # (r, b), int64
    uniforms: Tensor  # (r, b, k), uniform in [0, 1): one for each row of each batch, in order


class EpisodeSampler:
    """Draws episodes for runs that go through their iterations in order."""

    def __init__(
        self, seeds: Sequence[int], tasks: int, draws: Callable[[int], tuple[Draw, ...]]
    ) -> None:
        """Prepares; nothing is drawn yet."""
        self._seeds = sorted(set(seeds))
        alike = self._seeds == list(seeds)  # then runs need no indices into the draws
        self._run = None if alike else torch.tensor([self._seeds.index(seed) for seed in seeds])
        self._tasks, self._draws = tasks, draws
        self._begun = -1

    def draw(self, t: int) -> tuple[Drawn, ...]:
        """Returns the draws of iteration t."""
        block, at = divmod(t, _BLOCK)
        if block != self._begun:
            self._begin(block)
        found, start = [], 0
        for i, wanted in enumerate(self._draws(t)):
            if wanted.tasks is None:
                tasks = torch.arange(self._tasks).expand(len(self._seeds), -1)
            else:
                tasks = self._orders[:, i, at, : wanted.tasks]
            b, k = tasks.shape[1], sum(wanted.sizes)
            uniforms = self._uniforms[:, at, start : start + b * k].view(-1, b, k)
            start += b * k
            if self._run is not None:
                tasks, uniforms = tasks[self._run], uniforms[self._run]
            found.append(Drawn(tasks, uniforms))
        return tuple(found)

    def _begin(self, block: int) -> None:
        wanted = [self._draws(t) for t in range(block * _BLOCK, (block + 1) * _BLOCK)]
        count = max(len(draws) for draws in wanted)
        tasks = self._tasks
        numbers = max(sum((d.tasks or tasks) * sum(d.sizes) for d in draws) for draws in wanted)
        order = np.tile(np.arange(tasks), (_BLOCK, 1))
        orders, uniforms = [], []
        for seed in self._seeds:
            streams = (generator(seed, Stream.EPISODE_TASKS, block, i) for i in range(count))
            orders.append([rng.permuted(order, axis=1) for rng in streams])
            # Drawn row by row with a column per iteration, so that an iteration's numbers do not
            # depend on how many others draw.
            rng = generator(seed, Stream.EPISODE_ROWS, block)
            uniforms.append(rng.random((numbers, _BLOCK), dtype=np.float32).T)
        self._orders = torch.from_numpy(np.stack(orders))
        self._uniforms = torch.from_numpy(np.stack(uniforms))
        self._begun = block
