"""Draws a round's random cohort of clients, as a function of the seed and the round."""

from collections.abc import Collection

from federation.streams import Stream, generator


def draw_cohort(
    seed: int,
    server_round: int,
    num_clients: int,
    size: int,
    *,
    shards: int = 1,
    absent: Collection[int] = (),
) -> list[int]:
    """Returns ``size`` different clients of ``0..num_clients-1``, ascending.

    Args:
        seed: Root of the sampling stream.
        server_round: The round, >= 1.
        num_clients: Number of clients.
        size: How many to draw; a multiple of ``shards``.
        shards: Number of shards, from each of which ``size / shards`` are drawn. Shard s holds
            clients s, s + shards, ..., like node s of as many nodes.
        absent: Clients that cannot be asked. Each one drawn is replaced by another of its shard,
            if there is one left.
    """
    cohort: list[int] = []
    for shard in range(shards):
        key = (shard,) if shards > 1 else ()
        rng = generator(seed, Stream.COHORT, server_round, *key)
        held = len(range(shard, num_clients, shards))
        drawn = (shard + shards * rng.choice(held, size=size // shards, replace=False)).tolist()
        if any(client in absent for client in drawn):
            taken = set(drawn)
            others = [c for c in range(shard, num_clients, shards) if c not in {*taken, *absent}]
            drawn = [client for client in drawn if client not in absent]
            spare = rng.permutation(others)[: size // shards - len(drawn)]
            drawn += spare.astype(int).tolist()
        cohort += drawn
    return sorted(cohort)
