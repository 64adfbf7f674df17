"""Updates as guards let them leave clients."""

import torch
from torch import Tensor
from torch.func import vmap

from engram.core.method import Slots, Update
from engram.core.slots import flat
from engram.core.streams import Stream
from engram.guards.guard import At, Guard


def leave_together(guard: Guard, at: At, own: Slots, sent: Slots) -> Slots:
    """Returns clients' updates as guards let them leave that keep nothing of a client.

    Each depends on its client alone, so that a client's privacy does not depend on who else trains
    or on how nodes host clients. A client that is asked again answers with new noise, at the same
    privacy cost; a run reports the cost of what it asked for itself.

    Args:
        guard: The guards.
        at: Where they act: ``server`` has the slots that all of the clients received alike, and
            ``normal`` gives the numbers of all clients, (c, size).
        own: Their own slots that they received, with a leading client axis.
        sent: The slots that they send, with a leading client axis.
    """
    if not (paths := flat(sent)):
        return sent

    def leave(client: Tensor, own: Slots, sent: Slots) -> Slots:
        def normal(size: int, stream: Stream) -> Tensor:
            return at.normal(size, stream).index_select(0, client.reshape(1))[0]

        received = at.server | own
        here = at._replace(received=lambda _: received, normal=normal)
        return guard.leave(here, Update(sent, 0), {})[0].slots

    found: Slots = vmap(leave)(torch.arange(len(next(iter(paths.values())))), own, sent)
    return found
