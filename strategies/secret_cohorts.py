"""Cohorts drawn in secret, from the source of privacy's noise.

Nobody replaces a client that is absent, so that no client's chance depends on others: what is
missing of a cohort counts as clients that changed nothing, and the cohort may be empty.
"""

from collections.abc import Collection

import numpy as np

from engram.core.streams import Stream
from engram.guards.calibration import sampling_rate
from engram.guards.noise import Noise, taken
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

    Args:
        e: The settings.
        server_round: The round, >= 1.
        num_clients: Number of clients.
        noise: Secret where cohorts are to be secret.
        absent: Clients that cannot be asked now.
        unseen: Clients that never train.
    """
    if e.sampling == "poisson":
        drawn = poisson_cohort(sampling_rate(e), server_round, num_clients, noise)
    else:
        drawn = subset_cohort(e.clients_per_round, server_round, num_clients, noise, unseen)
    return [client for client in drawn if client not in absent and client not in unseen]


def poisson_cohort(rate: float, server_round: int, num_clients: int, noise: Noise) -> list[int]:
    """Draws each of ``0..num_clients-1`` with the same probability, independently; ascending.

    A client is drawn if its standard normal number is below the quantile of ``rate``.

    Args:
        rate: The probability, in (0, 1].
        server_round: The round, >= 1.
        num_clients: Number of clients.
        noise: Secret where cohorts are to be secret.
    """
    normal = noise(num_clients, Stream.COHORT, server_round)
    drawn: list[int] = np.flatnonzero(taken(normal, rate)).tolist()
    return drawn


def subset_cohort(
    size: int, server_round: int, num_clients: int, noise: Noise, unseen: Collection[int] = ()
) -> list[int]:
    """Draws ``size`` different clients of ``0..num_clients-1``, uniformly; ascending.

    They are those with the smallest standard normal numbers.

    Args:
        size: How many to draw, at most as many as there are without ``unseen``.
        server_round: The round, >= 1.
        num_clients: Number of clients.
        noise: Secret where cohorts are to be secret.
        unseen: Clients that are not drawn.
    """
    order: list[int] = noise(num_clients, Stream.COHORT, server_round).argsort(stable=True).tolist()
    return sorted([client for client in order if client not in unseen][:size])
