"""Random draws of the rows on which clients train."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from engram.cohort.draws import Draws
from engram.core.arrays import Ints
from engram.core.method import Client
from engram.core.rounds import first_steps
from engram.core.streams import Stream, generator
from engram.data.augmentations import Augmentation
from engram.data.federated import Split
from engram.data.lazy import RowNumbers
from engram.networks.base import Model

if TYPE_CHECKING:
    from engram.guards.noise import Noise
    from engram.settings.experiment import Experiment


class Sampler:
    """Draws the rows of clients' rounds, as a function of ``(seed, round, client)``.

    Args:
        experiment: The settings.
        train: Rows to draw from.
        client: The client's part of the method.
        network: The network.
        augment: The augmentation that changes rows at random; None if there is none.
        noise: Source of samples by chance, and of the noise of steps.
        parameters: Numbers in the network's parameters.
        by_chance: Whether each step takes each row with a probability, in secret.
    """

    def __init__(
        self,
        experiment: "Experiment",
        train: Split,
        client: Client,
        network: Model,
        augment: Augmentation | None,
        noise: "Noise | None" = None,
        parameters: int = 0,
        *,
        by_chance: bool = False,
    ) -> None:
        self._experiment = experiment
        self._train = train
        self._client = client
        self._network = network
        self._augment = augment
        self._noise, self._parameters, self._by_chance = noise, parameters, by_chance
        self._batches = client.phases[0].batches
        self._last: tuple[tuple[list[int], int], Draws] | None = None

    def draw(self, clients: Sequence[int], server_round: int) -> Draws:
        """Draws the rows of a round: at random, or with ``order=stream`` the next in order.

        A client with at most ``batch-size`` rows has all of them in each batch. The last draws are
        cached, since runs that share a sampler ask for the same ones.
        """
        asked = list(clients), server_round
        if self._by_chance:
            return self._sampled(*asked)  # anew each time, as its noise is
        if self._last is None or self._last[0] != asked:
            self._last = asked, self._draw(*asked)
        return self._last[1]

    def different(self, client: int, server_round: int) -> int:
        """Returns the number of different rows in a client's steps of a round.

        Of several phases it is the least one: what the last one trains may be all that is sent.
        """
        drawn = self.draw([client], server_round)
        rows = drawn.rows[0, drawn.initial :].reshape(drawn.steps, drawn.batches, -1).cpu().numpy()
        sizes = np.full((1, drawn.steps), drawn.size) if drawn.sizes is None else drawn.sizes
        there = np.arange(drawn.size) < sizes[0][:, None, None]
        there = np.broadcast_to(there, rows.shape)
        phases = pairwise([*drawn.starts[0].tolist(), drawn.steps])
        found = [len(np.unique(rows[a:b][there[a:b]])) for a, b in phases]
        return min(filter(None, found), default=0)

    def _draw(self, clients: Sequence[int], server_round: int) -> Draws:
        e, start = self._experiment, self._client.initial_rows
        held = np.array([[len(self._train.rows[client])] for client in clients])
        size = min(e.batch_size, int(held.max()))
        sizes = self._sizes(held)
        count = e.local_steps if sizes is None else sizes.shape[1]
        steps = [count] * len(clients) if sizes is None else (sizes > 0).sum(1).tolist()
        batches = count * self._batches
        rows = np.zeros((len(clients), start + batches * size), dtype=np.int64)
        seeds = np.zeros_like(rows) if self._augment is not None else None
        for i, client in enumerate(clients):
            each = min(size, int(held[i, 0]))
            layout = start, size, each
            self._fill_rows(rows[i], client, server_round, layout)
            if seeds is not None:
                rng = generator(e.seed, Stream.AUGMENTATION, server_round, client)
                drawn = rng.integers(2**32, size=start + batches * each)
                _fill(seeds[i], drawn, layout)
        return Draws(
            split=self._train,
            rows=torch.from_numpy(rows).to(e.device),
            initial=start,
            batches=self._batches,
            size=size,
            augment=self._augment,
            seeds=None if seeds is None else torch.from_numpy(seeds).to(e.device),
            keys=self._keys(clients, server_round, 1 + batches) if self._network.noisy else None,
            sizes=sizes,
            starts=np.array([first_steps(self._client.phases, h) for h in steps]),
        )

    def _sampled(self, clients: Sequence[int], server_round: int) -> Draws:
        from engram.guards.noise import secret_noise  # noqa: PLC0415 - rarely needed
        from engram.guards.secret_samples import row_samples  # noqa: PLC0415 - rarely needed

        e, noise = self._experiment, self._noise or secret_noise
        rows, size, sample = row_samples(
            e, self._train, clients, server_round, noise, self._parameters
        )
        own = rows if self._train.hashes is None else (self._train.hashes[rows] * 2**53).astype(int)
        own = np.pad(own.reshape(len(clients), -1, size), ((0, 0), (1, 0), (0, 0)))

        def keys(stream: Stream) -> Tensor:
            """Returns random integers (c, 1 + steps, k), each by its row and step alone."""
            steps = self._keys(clients, server_round, 1 + e.local_steps, stream)
            return (steps[..., None] + torch.from_numpy(own).to(e.device)) % 2**32

        return Draws(
            split=self._train,
            rows=torch.from_numpy(rows).to(e.device),
            initial=0,
            batches=1,
            size=size,
            augment=self._augment,
            seeds=keys(Stream.AUGMENTATION)[:, 1:].flatten(1) if self._augment else None,
            keys=keys(Stream.DROPOUT) if self._network.noisy else None,
            starts=np.array([first_steps(self._client.phases, e.local_steps)] * len(clients)),
            sample=sample,
        )

    def _fill_rows(
        self, row: RowNumbers, client: int, server_round: int, layout: tuple[int, int, int]
    ) -> None:
        e, own, (start, size, each) = self._experiment, self._train.rows[client], layout
        steps = len(row) - start
        if e.order == "stream":
            number = start + steps // size * each
            _fill(row, self._train.next_rows(client, server_round, number), layout)
            return
        if start:
            rng = generator(e.seed, Stream.INITIAL_BATCH, server_round, client)
            row[:start] = own[rng.integers(len(own), size=start)]
        rng = generator(e.seed, Stream.LOCAL_STEPS, server_round, client)
        if e.local_epochs:
            drawn = self._epochs(rng, len(own), size)
            row[start : start + len(drawn)] = own[drawn]
        elif len(own) <= e.batch_size:
            row[start:].reshape(-1, size)[:, :each] = own
        else:
            row[start:] = own[rng.integers(len(own), size=steps)]

    def _sizes(self, counts: Ints) -> Ints | None:
        """Returns the rows in a batch of each step, (c, steps); see ``Draws.sizes``.

        ``counts`` (c, 1) are the clients' rows.
        """
        e = self._experiment
        if not e.local_epochs:
            sizes = np.minimum(counts, e.batch_size)
            return None if np.ptp(sizes) == 0 else np.tile(sizes, e.local_steps)
        each = self._epoch(counts)
        step = np.arange(e.local_epochs * each.max())
        left = counts - step % each * e.batch_size
        return np.where(step < e.local_epochs * each, np.minimum(left, e.batch_size), 0)

    def _epoch(self, counts: Ints) -> Ints:
        """Returns the number of steps in an epoch; a last batch that is too small is left out."""
        size = self._experiment.batch_size
        return counts // size + (counts % size >= self._network.least_rows)

    def _epochs(self, rng: np.random.Generator, count: int, size: int) -> RowNumbers:
        """Permutes ``count`` rows for each epoch and each batch of a step; batches are padded."""
        e, batches = self._experiment, self._batches
        each = int(self._epoch(np.array(count)))
        passes = np.zeros((e.local_epochs, batches, each * size), dtype=np.int64)
        drawn = rng.permuted(
            np.broadcast_to(np.arange(count), (e.local_epochs, batches, count)), axis=-1
        )
        kept = min(count, each * size)
        passes[..., :kept] = drawn[..., :kept]
        return passes.reshape(e.local_epochs, batches, each, -1).swapaxes(1, 2).ravel()

    def _keys(
        self, clients: Sequence[int], server_round: int, count: int, stream: Stream = Stream.DROPOUT
    ) -> Tensor:
        seed = self._experiment.seed
        drawn = [
            generator(seed, stream, server_round, client).integers(2**32, size=count)
            for client in clients
        ]
        return torch.from_numpy(np.stack(drawn)).to(self._experiment.device)


def _fill(row: RowNumbers, drawn: RowNumbers, layout: tuple[int, int, int]) -> None:
    """Writes numbers of an initial batch and of batches, which are padded to the same size.

    Args:
        row: The array that they are written to.
        drawn: Row numbers; the last are those of the batches, those before them of the initial one.
        layout: Rows of the initial batch, of a batch with its padding, and of one without it.
    """
    start, size, each = layout
    batches = row[start:].reshape(-1, size)
    first = len(drawn) - len(batches) * each
    row[:start] = drawn[first - start : first]
    batches[:, :each] = drawn[first:].reshape(-1, each)
