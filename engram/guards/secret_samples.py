"""Samples of clients, and of a client's rows, from the source of privacy's noise.

Whoever knows who was drawn in a round, or which rows a step took, knows more than its noise hides:
on nodes, samples come from the same secret entropy as the noise does, and not from the run's seed.

Nobody replaces a client that is absent, so that no client's chance depends on others: what is
missing of a cohort counts as clients that changed nothing, and the cohort may be empty.
"""

from collections.abc import Collection, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from engram.cohort.draws import Sample
from engram.core.arrays import Bools, Ints
from engram.core.streams import Stream
from engram.data.federated import Split
from engram.guards.calibration import plan_of
from engram.guards.noise import Noise
from engram.settings.experiment import Experiment


def secret_cohort(
    e: Experiment,
    server_round: int,
    num_clients: int,
    noise: Noise,
    *,
    absent: Collection[int] = (),
    unseen: Collection[int] = (),
) -> list[int]:
    """Draws a cohort as the setting ``sampling`` says, which is not ``fixed``; ascending.

    ``noise`` is as secret as cohorts are. ``absent`` clients are away, ``unseen`` ones never train.
    """
    if e.sampling == "poisson":
        drawn = poisson_cohort(plan_of(e).rate, server_round, num_clients, noise)
    else:
        drawn = subset_cohort(e.clients_per_round, server_round, num_clients, noise, unseen)
    return [client for client in drawn if client not in absent and client not in unseen]


def poisson_cohort(rate: float, server_round: int, num_clients: int, noise: Noise) -> list[int]:
    """Draws each of ``0..num_clients-1`` with probability ``rate``, independently; ascending."""
    taken = _taken(noise(num_clients, Stream.COHORT, server_round), rate)
    return [client for client, drawn in enumerate(taken.tolist()) if drawn]


def subset_cohort(
    size: int, server_round: int, num_clients: int, noise: Noise, unseen: Collection[int] = ()
) -> list[int]:
    """Draws ``size`` different clients of ``0..num_clients-1``, uniformly; ascending.

    They are those with the smallest standard normal numbers, but for ``unseen``.
    """
    order: list[int] = noise(num_clients, Stream.COHORT, server_round).argsort(stable=True).tolist()
    return sorted([client for client in order if client not in unseen][:size])


def row_samples(
    e: Experiment,
    train: Split,
    clients: Sequence[int],
    server_round: int,
    noise: Noise,
    parameters: int,
) -> tuple[Ints, int, Sample]:
    """Draws each of a client's rows in each step with probability ``min(1, batch-size / rows)``.

    ``noise`` is secret where rows are to be hidden; ``parameters`` are the network's numbers.

    Returns:
        Numbers of the rows (c, steps k) with padding, k, and the samples.
    """
    plan, drawn, numbers = plan_of(e), list[list[Ints]](), range(1, e.local_steps + 1)
    for client in clients:
        own = train.rows[client]
        rate = plan._replace(rows=len(own)).row_rate
        normal = (noise(len(own), Stream.LOCAL_STEPS, server_round, client, h) for h in numbers)
        drawn.append([own[_taken(x, rate)] for x in normal])
    size = max(1, *(len(rows) for steps in drawn for rows in steps))
    rows = np.zeros((len(clients), e.local_steps, size), dtype=np.int64)
    mask = np.zeros_like(rows, dtype=np.float32)
    for i, steps in enumerate(drawn):
        rows[i] = train.rows[clients[i]][0]
        for h, some in enumerate(steps):
            rows[i, h, : len(some)], mask[i, h, : len(some)] = some, 1
    expected = [float(min(e.batch_size, len(train.rows[client]))) for client in clients]
    drawn_by = partial(noise, parameters, Stream.CLIENT_NOISE, server_round)
    sample = Sample(
        torch.from_numpy(mask.reshape(len(clients), -1)).to(e.device),
        torch.tensor(expected, device=e.device),
        [partial(drawn_by, client) for client in clients],
    )
    return rows.reshape(len(clients), -1), size, sample


def _taken(normal: Tensor, rate: float) -> Bools:
    below = torch.special.ndtri(torch.tensor(rate, dtype=torch.float64))
    found: Bools = (normal.double() < below).numpy()
    return found
