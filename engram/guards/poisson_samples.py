"""Poisson samples of a client's rows, from the source of privacy's noise.

Whoever knows which rows a step took knows more than its noise hides: on nodes, samples come from
the same secret entropy as the noise does, and not from the run's seed.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from engram.cohort.draws import Sample
from engram.core.arrays import Ints
from engram.core.streams import Stream
from engram.data.federated import Split
from engram.guards.calibration import row_rate
from engram.guards.noise import Noise, taken

if TYPE_CHECKING:
    from engram.settings.experiment import Experiment


def row_samples(
    experiment: "Experiment",
    train: Split,
    clients: Sequence[int],
    server_round: int,
    noise: Noise,
    parameters: int,
) -> tuple[Ints, int, Sample]:
    """Draws each of a client's rows in each step with probability ``min(1, batch-size / rows)``.

    Args:
        experiment: The settings.
        train: The rows.
        clients: The clients.
        server_round: The round, >= 1.
        noise: Secret where rows are to be hidden.
        parameters: Numbers in the network's parameters.

    Returns:
        Numbers of the rows (c, steps k) with padding, k, and the samples.
    """
    e, drawn = experiment, list[list[Ints]]()
    for client in clients:
        own = train.rows[client]
        rate = row_rate(e, len(own))
        normal = [
            noise(len(own), Stream.LOCAL_STEPS, server_round, client, step)
            for step in range(1, e.local_steps + 1)
        ]
        drawn.append([own[taken(x, rate)] for x in normal])
    size = max(1, *(len(rows) for steps in drawn for rows in steps))
    rows = np.zeros((len(clients), e.local_steps, size), dtype=np.int64)
    mask = np.zeros_like(rows, dtype=np.float32)
    for i, steps in enumerate(drawn):
        rows[i] = train.rows[clients[i]][0]
        for h, some in enumerate(steps):
            rows[i, h, : len(some)], mask[i, h, : len(some)] = some, 1
    expected = [float(min(e.batch_size, len(train.rows[client]))) for client in clients]
    each = [partial(_normal, noise, parameters, server_round, client) for client in clients]
    sample = Sample(
        torch.from_numpy(mask.reshape(len(clients), -1)).to(e.device),
        torch.tensor(expected, device=e.device),
        each,
    )
    return rows.reshape(len(clients), -1), size, sample


def _normal(noise: Noise, size: int, server_round: int, client: int, step: int) -> torch.Tensor:
    return noise(size, Stream.CLIENT_NOISE, server_round, client, step)
