"""Changes of updates: the difference of each slot to the received one, or to zero."""

import torch
from torch import Tensor

from engram.core.method import Method, Slots
from engram.core.slots import over_slots, zeros


def changes(method: Method, received: Slots, sent: Slots) -> Slots:
    """Returns an update's changes: models minus the received ones, and other slots as they are."""
    return over_slots(torch.sub, sent, origin_of(method, received, sent))


def origin_of(method: Method, received: Slots, sent: Slots) -> Slots:
    """Returns each sent slot's reference: the received model, or zeros."""
    found: Slots = {}
    for slot, x in sent.items():
        if method.kinds[slot] == "model":
            found[slot] = {name: received[slot][name] for name in x}
        else:
            found[slot] = torch.zeros_like(x) if isinstance(x, Tensor) else zeros(x)
    return found
