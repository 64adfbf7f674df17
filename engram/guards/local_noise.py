"""Updates that leave a site under local privacy, whatever its server has sent.

``engram.guards.aggregation.leave_client`` is the same up to rounding, of updates that are finite
and of slots of usual size. A server that wants more than the noise allows could send others: slots
so large that a small change is rounded up, or that training diverges on some rows and not on
others. So noise is added to the changes, in float64, before they are added to what was received,
and rounding comes last; and an update that is not finite counts as no change.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import vmap

from engram.core.clip_and_noise import Walker, origin_of
from engram.core.method import Slots
from engram.core.slots import flat, over_slots
from engram.core.streams import Stream
from engram.guards.calibration import noise_multiplier
from engram.guards.noise import Noise
from engram.settings.experiment import Experiment


def leave_covered(
    e: Experiment,
    walker: Walker,
    received: Slots,
    sent: Slots,
    *,
    clients: Sequence[int],
    server_round: int,
    noise: Noise,
) -> Slots:
    """Returns ``origin + min(1, C / |change|) change + z C xi`` of each client, xi ~ N(0, I).

    Args:
        e: The settings: C is ``clip``, which is positive, and z the noise multiplier.
        walker: The method's walker. No running statistics are sent.
        received: The slots that the clients received, those of each with a leading client axis.
        sent: The slots that they would send, with a leading client axis.
        clients: The clients.
        server_round: The round.
        noise: Source of the noise.
    """
    if not flat(sent):
        return sent
    exact = over_slots(Tensor.double, sent)
    origin = origin_of(walker.method, over_slots(Tensor.double, received), exact)
    change = over_slots(torch.sub, exact, origin)
    rows = torch.cat([leaf.reshape(len(leaf), -1) for leaf in flat(change).values()], dim=1)
    norms = torch.linalg.vector_norm(rows, dim=1)
    scale = torch.where(norms.isfinite(), (e.clip / norms).clamp(max=1.0), 0.0)

    def held(leaf: Tensor) -> Tensor:
        near = leaf * scale.view(-1, *[1] * (leaf.ndim - 1))
        return torch.where(near.isfinite(), near, 0.0)  # 0 times infinity

    near, size = over_slots(held, change), rows.shape[1]
    drawn = [noise(size, Stream.CLIENT_NOISE, server_round, client) for client in clients]
    deviation = noise_multiplier(e) * e.clip
    noisy: Slots = vmap(lambda x, normal: walker.add_noise(x, deviation, normal))(
        near, torch.stack(drawn).to(rows)
    )
    whole = over_slots(torch.add, noisy, origin)
    return over_slots(lambda x, like: x.to(like.dtype), whole, sent)
