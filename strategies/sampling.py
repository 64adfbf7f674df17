"""Poisson sampling of cohorts, from the source of privacy's noise."""

from collections.abc import Collection

import torch

from federation.noise import Noise
from federation.streams import Stream


def poisson_cohort(
    rate: float,
    server_round: int,
    num_clients: int,
    noise: Noise,
    absent: Collection[int] = (),
) -> list[int]:
    """Draws each of ``0..num_clients-1`` with the same probability, independently; ascending.

    A client is drawn if its standard normal number is below the quantile of ``rate``. Nobody
    replaces a client that is absent, so that no client's chance depends on others; the cohort may
    be empty.

    Args:
        rate: The probability, in (0, 1].
        server_round: The round, >= 1.
        num_clients: Number of clients.
        noise: Secret where cohorts are to be secret.
        absent: Clients that cannot be asked.
    """
    normal = noise(num_clients, Stream.COHORT, server_round).double()
    below = torch.special.ndtri(torch.tensor(rate, dtype=torch.float64))
    drawn: list[int] = torch.nonzero(normal < below).flatten().tolist()
    return [client for client in drawn if client not in absent]
