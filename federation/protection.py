"""Applies the settings of privacy and robustness to a method's aggregate and models."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import partial

import torch
from torch.func import vmap

from engram.aggregates import Aggregate, Update, weighted_mean
from engram.privacy import add_normal, clip, clipped, epsilon, private_mean
from engram.robust import Center, centered, krum, median, trimmed_mean
from engram.types import Params
from federation.noise import Noise
from federation.settings.protection import ProtectionSettings
from federation.settings.shared import SharedSettings
from federation.streams import Stream


def protected(aggregate: Aggregate, e: SharedSettings, noise: Noise) -> Aggregate:
    """Returns a method's aggregate with the experiment's merge, clipping and central noise.

    Raises:
        ValueError: If the method's aggregate is not a mean, and the settings would replace a mean.
    """
    if e.privacy == "central":
        return private_mean(
            aggregate,
            bound=e.clip,
            multiplier=e.noise_multiplier,
            clients=e.clients_per_round,
            normal=lambda size, release: noise(size, Stream.SERVER_NOISE, release),
        )
    if e.merge != "mean":
        aggregate = centered(aggregate, _center(e))
    return clipped(aggregate, e.clip, _deviation(e)) if e.clip else aggregate


def _center(e: ProtectionSettings) -> Center:
    if e.merge == "median":
        return median
    if e.merge == "krum":
        return partial(krum, malicious=e.num_malicious)
    return partial(trimmed_mean, cut=e.num_malicious)


def average(e: ProtectionSettings) -> Callable[[Sequence[Update]], Params]:
    """Returns the average of running statistics, as robust as the settings' merge of parameters.

    Krum chooses a client by its parameters, which tell nothing of its statistics: with it they are
    the median. A mean or median of variances, which are at least 0, is at least 0.
    """
    if e.merge == "mean":
        return weighted_mean
    center = median if e.merge == "krum" else _center(e)
    return lambda updates: center([update.params for update in updates])


def _deviation(e: ProtectionSettings) -> float:
    """Returns the standard deviation of the noise that each client adds."""
    return e.noise_multiplier * e.clip if e.privacy == "local" else 0.0


def leave_client(
    e: ProtectionSettings,
    models: Params,
    model: Params,
    *,
    statistics: Set[str],
    clients: Sequence[int],
    server_round: int,
    noise: Noise,
) -> Params:
    """Clips clients' updates and adds local noise, before their models leave the clients.

    Each model depends on its client alone, so that a client's privacy does not depend on who else
    trains or on how nodes host clients. A client that is asked again answers with new noise, at the
    same privacy cost; a run reports the cost of what it asked for itself.

    Args:
        e: The settings; ``clip`` is positive.
        models: The trained models, each leaf with a leading axis of ``len(clients)``.
        model: The common model that they were trained from.
        statistics: Names of running statistics, which leave as they are.
        clients: The models' clients.
        server_round: The round.
        noise: Source of the noise.
    """
    learned, start = (
        {name: leaf for name, leaf in params.items() if name not in statistics}
        for params in (models, model)
    )
    learned = vmap(clip, in_dims=(0, None, None))(learned, start, e.clip)
    if e.privacy == "local":
        size = sum(leaf.numel() for leaf in start.values())
        drawn = [noise(size, Stream.CLIENT_NOISE, server_round, client) for client in clients]
        learned = add_normal(learned, _deviation(e), torch.stack(drawn))
    return models | learned


def spent(e: ProtectionSettings, rounds: int) -> float:
    """Returns the epsilon, at ``delta``, of a client that took part in ``rounds`` rounds.

    Central privacy hides from anyone who sees the models whether a client took part at all: adding
    or removing it moves the sum by ``clip``. Local privacy hides from the server which data a
    client has: two clipped updates lie up to ``2 clip`` apart. Only a client's models are
    accounted for, not the other numbers that it sends.
    """
    reach = 2 if e.privacy == "local" else 1
    return epsilon(e.noise_multiplier / reach, rounds, e.delta)
