"""Clipping by a bound that follows a quantile of the norms of clients' updates.

Andrew, Thakkar, McMahan, Ramaswamy. Differentially Private Learning with Adaptive Clipping. NeurIPS
2021. Of a round's clients, b_i = 1 if client i's update is within the bound C, and 0 otherwise. For
m expected clients, a quantile gamma and a rate eta_C = 0.2 (Alg. 1) ::

    share = 1/2 + (sum_i (b_i - 1/2) + sigma_b xi) / m,    xi ~ N(0, 1)
    C <- C exp(-eta_C (share - gamma))

A client moves the sum of the b_i - 1/2 by 1/2. So the count with deviation sigma_b, and the sum of
updates with multiplier z_d, cost together what one release with multiplier z costs, if
z_d = (z^-2 - (2 sigma_b)^-2)^-1/2 (Thm. 1).
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from engram.core.clip_and_noise import Walker
from engram.core.method import FromMean, Method, Slots, Update

BOUND: Final = "clip"
"""Name of the server's slot that has the bound, a scalar."""

_RATE: Final = 0.2


class Split(NamedTuple):
    """The two releases of a round."""

    updates: float  # noise multiplier of the sum of updates, z_d
    deviation: float  # standard deviation of the noise on the count, sigma_b


def split(multiplier: float, clients: int) -> Split:
    """Splits a release into one of updates and one of the count, at the same cost.

    The paper has sigma_b = m / 20. With less than 20 z clients that would take most of the budget,
    or more than all of it; here sigma_b is z then, and z_d is 1.15 z.
    """
    count = max(clients / 20, multiplier)
    return Split((multiplier**-2 - (2 * count) ** -2) ** -0.5, count)


def adaptive(method: Method, first: float) -> Method:
    """Wraps a method: its server holds the bound in a slot, ``first`` at the start.

    Its merge takes the next bound from the mean's slot of that name, see ``adaptive_mean``.

    Raises:
        ValueError: If the server sees every update, not their mean.
    """
    merge = method.server.merge
    if not isinstance(merge, FromMean):
        raise ValueError("clip-quantile must be 0 for a method whose server sees every update")

    def followed(server: Slots, mean: Update) -> Slots:
        slots = dict(mean.slots)
        bound = slots.pop(BOUND)
        before = {slot: x for slot, x in server.items() if slot != BOUND}
        return merge.merge(before, mean._replace(slots=slots)) | {BOUND: bound}

    server = method.server._replace(
        start={**method.server.start, BOUND: torch.tensor(first)},
        merge=merge._replace(merge=followed),
    )
    return method._replace(server=server, kinds={**method.kinds, BOUND: "statistic"})


def adaptive_mean(
    walker: Walker,
    server: Slots,
    updates: Sequence[Update],
    *,
    quantile: float,
    multiplier: float,
    clients: int,
    normal: Callable[[int], Tensor],
    xi: float,
) -> Update:
    """Returns ``Walker.private_mean`` by the bound of the server's slot, and the next bound.

    Args:
        walker: The walker of a method of ``adaptive``.
        server: The server's slots.
        updates: An update of each client, which is not clipped yet.
        quantile: gamma, in (0, 1).
        multiplier: The noise multiplier z of both releases together; > 0.
        clients: m; >= 1.
        normal: ``size -> (size,)``, standard normal numbers.
        xi: Another one, of its own.
    """
    bound, z = float(server[BOUND]), split(multiplier, clients)
    received, _ = walker.method.server.send(server, [])
    within = sum(
        update.clients * ((walker.length(received, update.slots) <= bound) - 0.5)
        for update in updates
    )
    mean = walker.private_mean(
        server, updates, bound=bound, multiplier=z.updates, clients=clients, normal=normal
    )
    share = 0.5 + (within + z.deviation * xi) / clients
    after = torch.full_like(server[BOUND], bound * math.exp(-_RATE * (share - quantile)))
    return mean._replace(slots=mean.slots | {BOUND: after})
