"""An update's change: each array's difference to that of a client that does nothing.

Guards see it by path, in float64, without running statistics: noise might make a variance negative.
"""

import math
from collections.abc import Callable, Set

import torch
from torch import Tensor

from engram.core.method import Method, Slots, Update
from engram.core.slots import flat, over_slots, unflat, zeros
from engram.core.tree import norm
from engram.core.types import Params
from engram.guards.places import At


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


def is_running(method: Method, running: Set[str], path: str) -> bool:
    """Returns whether an array, ``slot/name``, is a running statistic of a model."""
    slot, _, name = path.partition("/")
    return name in running and method.kinds[slot] == "model"


def origin(at: At, update: Update) -> Params:
    """Returns the arrays, by path, of an update that changes nothing."""
    return flat(origin_of(at.method, at.received(update), update.slots))


def change_of(at: At, update: Update) -> Params:
    """Returns an update's change."""
    begun, sent = origin(at, update), flat(update.slots)
    paths = [path for path in sent if not is_running(at.method, at.running, path)]
    return {path: sent[path].double() - begun[path].double() for path in paths}


def models_of(at: At, change: Params) -> Params:
    """Returns a change without statistics of a client's own rows."""
    kinds = at.method.kinds
    return {p: x for p, x in change.items() if kinds[p.partition("/")[0]] != "statistic"}


def changed(at: At, update: Update, change: Params) -> Update:
    """Returns an update with another change: numbers are rounded here alone.

    What stays as it is does so to the last bit. A server that wants more than noise allows could
    send slots so large that a small change is rounded up, or that training diverges on some rows
    and not on others. So guards act on changes in float64, and rounding comes last.
    """
    begun, sent = origin(at, update), flat(update.slots)
    near = dict(sent)
    for path, x in change.items():
        start, end = begun[path].double(), sent[path]
        near[path] = torch.where(x == end.double() - start, end, (start + x).to(end.dtype))
    return update._replace(slots=unflat(near, update.slots))


def acted_on(at: At, update: Update, act: Callable[[Params], Params]) -> Update:
    """Returns an update with its change acted on, under ``vmap``."""
    change = change_of(at, update)
    return changed(at, update, act(change)) if change else update


def length_of(change: Params) -> float:
    """Returns the Euclidean norm of a change; 0 of none."""
    return float(norm(change)) if change else 0.0


def shortened(at: At, update: Update, bound: float) -> Update:
    """Returns ``origin + min(1, bound / |change|) change``; an update within the bound as it is."""
    change = change_of(at, update)
    length = length_of(change)
    if length <= bound:
        return update
    return changed(at, update, {path: x * (bound / length) for path, x in change.items()})


def size_of(change: Params) -> int:
    """Returns the number of a change's numbers."""
    return sum(leaf.numel() for leaf in change.values())


def arrays_of(normal: Tensor, change: Params) -> Params:
    """Returns numbers, (size_of(change),), as arrays like those of a change.

    Arrays take theirs in the order of their names, since a file may store another order. The change
    and the numbers may have leading axes, the same ones.
    """
    lead, found, at = normal.ndim - 1, Params(), 0
    for path, leaf in sorted(change.items()):
        size = math.prod(leaf.shape[lead:])
        found[path], at = normal[..., at : at + size].to(leaf).view(leaf.shape), at + size
    return found


def vector_of(change: Params) -> Tensor:
    """Undoes ``arrays_of``, for a change without leading axes."""
    parts = [leaf.reshape(-1) for _, leaf in sorted(change.items())]
    return torch.cat([torch.zeros(0, dtype=torch.float64), *parts])


def rebased(at: At, then: Slots, update: Update, age: int) -> Update:
    """Makes a change of older slots a change of those that its client would receive now.

        now + (u - then) / sqrt(1 + age)

    (Nguyen et al. AISTATS 2022, Sec. 5.1.) So does every model and every difference; statistics are
    left as they are. ``age`` are the rounds that have ended since ``then``.
    """
    change = models_of(at, change_of(at._replace(received=lambda _: then), update))
    return changed(at, update, {path: x / math.sqrt(1 + age) for path, x in change.items()})
