"""What the settings of privacy and robustness make of an algorithm's aggregate and its models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch.func import vmap

from engram.aggregates import Aggregate
from engram.privacy import add_normal, clip, clipped, epsilon, private_mean
from engram.robust import Center, centered, krum, median, trimmed_mean
from engram.types import Params
from federation.noise import Noise
from federation.settings.protection import ProtectionSettings
from federation.settings.shared import SharedSettings
from federation.streams import Stream


def protected(aggregate: Aggregate, e: SharedSettings, noise: Noise) -> Aggregate:
    """Returns an algorithm's aggregate with the experiment's merge, clipping and central noise.

    Raises:
        ValueError: If the algorithm's own aggregate is no mean, and the settings would replace one.
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


def _deviation(e: ProtectionSettings) -> float:
    """Returns the standard deviation of the noise that a client adds."""
    return e.noise_multiplier * e.clip if e.privacy == "local" else 0.0


def leave_client(
    e: ProtectionSettings,
    models: Params,
    model: Params,
    *,
    clients: Sequence[int],
    server_round: int,
    noise: Noise,
) -> Params:
    """Returns clients' models as they leave the clients: clipped, and with local noise.

    Each is a function of its client alone, so that neither who else trains with it, nor how
    nodes host clients, bears on its privacy. A client that is asked again answers again, with
    other noise and at the same cost: what a run reports is what it asked for itself.

    Args:
        e: The settings; ``clip`` is positive.
        models: What was trained, each leaf with a leading axis of ``len(clients)``.
        model: The common model that it was trained from.
        clients: Whose they are.
        server_round: In which round.
        noise: Its source.
    """
    models = vmap(clip, in_dims=(0, None, None))(models, model, e.clip)
    if e.privacy != "local":
        return models
    size = sum(leaf.numel() for leaf in model.values())
    drawn = [noise(size, Stream.CLIENT_NOISE, server_round, client) for client in clients]
    return add_normal(models, _deviation(e), torch.stack(drawn))


def spent(e: ProtectionSettings, rounds: int) -> float:
    """Returns the epsilon, at ``delta``, of a client that took part in so many rounds.

    Central privacy hides from whoever sees the models whether a client's data are there at all;
    adding or removing them moves the sum by ``clip``. Local privacy hides from the server which
    data a client has; two clipped updates lie up to ``2 clip`` apart. What is counted is what
    its models tell of a client, and nothing else that it sends.
    """
    reach = 2 if e.privacy == "local" else 1
    return epsilon(e.noise_multiplier / reach, rounds, e.delta)
