"""Bounds of a round's updates by comparison with each other: of their norms, and of their claims.

Sun et al. Can You Really Backdoor Federated Learning? 2019, bound norms by a constant. Here the
bound follows the round: it is a multiple of the median client's norm, of models and of statistics
apart, since the length of a model's change says nothing of the length of a statistic.
"""

from typing import Final

import numpy as np

from engram.core.clip_and_noise import origin_of
from engram.core.method import Slots, Update
from engram.core.rounds import received_by
from engram.core.slots import flat, unflat
from engram.core.tree import distance
from engram.core.types import Params
from engram.guards.accounting.gaussian import clip
from engram.guards.claimed_ranges import bounded
from engram.guards.merge import Merge
from engram.strategies.screening import Accepted, TrainReplies

_LEAST: Final = 3  # updates among which one is usual: of two, nobody knows which


def shortened(replies: TrainReplies, merge: Merge, server: Slots, most: float) -> TrainReplies:
    """Scales changes that are longer than ``most`` times the median one down to that length.

    Models count together, since small parts of them differ most between honest clients; running
    statistics, and every other slot, count by themselves. What most clients leave as it is has no
    usual length, and no bound.

    Returns:
        The replies, in which ``shortened`` has the clients whose updates are shorter now.
    """
    updates = [update for _, reply in replies.accepted for update in reply.updates]
    if len(updates) < _LEAST:
        return replies
    lengths = [
        {key: distance(*part) for key, part in _parts(merge, server, update).items()}
        for update in updates
    ]
    limits = {key: most * float(np.median([own[key] for own in lengths])) for key in lengths[0]}
    near, far = list[Update](), list[bool]()
    for update, own in zip(updates, lengths, strict=True):
        long = [key for key, length in own.items() if 0 < limits[key] < length]
        arrays = flat(update.slots)
        for key in long:
            for path, leaf in clip(*_parts(merge, server, update)[key], limits[key]).items():
                arrays[path] = leaf.to(arrays[path])
        near.append(update._replace(slots=unflat(arrays, update.slots)) if long else update)
        far.append(bool(long))
    named = _clients_of(replies, far)
    return _with_updates(replies, near)._replace(shortened=named)


def comparable(replies: TrainReplies, merge: Merge, most: float) -> TrainReplies:
    """Bounds the claims of updates: see ``engram.guards.claimed_ranges.bounded``.

    ``most`` >= 1 is the multiple of the usual mean of a class, ``max-weight`` that of an amount.
    """
    updates = [update for _, reply in replies.accepted for update in reply.updates]
    amount = merge.settings.max_weight
    near = bounded(merge.method.claims, updates, amount=amount, mean=most)
    return _with_updates(replies, near)


def _parts(merge: Merge, server: Slots, update: Update) -> dict[str, tuple[Params, Params]]:
    """Groups an update's arrays by norm: the arrays, and their values before the round."""
    received = received_by(merge.method, server, update.client or 0)
    sent = flat(update.slots)
    origin = flat(origin_of(merge.method, received, update.slots))
    found: dict[str, tuple[Params, Params]] = {}
    for path, leaf in sent.items():
        slot, _, name = path.partition("/")
        group = slot
        if merge.method.kinds[slot] == "model":
            group = "running statistics" if name in merge.walker.running else "models"
        own, begun = found.setdefault(group, ({}, {}))
        own[path], begun[path] = leaf, origin[path]
    return found


def _clients_of(replies: TrainReplies, marked: list[bool]) -> tuple[int, ...]:
    """Returns the clients of marked updates; all of a reply's, if it is the mean of several."""
    marks, found = iter(marked), list[int]()
    for clients, reply in replies.accepted:
        own = [(update.client, next(marks)) for update in reply.updates]
        for client, mark in own:
            if mark:
                found += clients if client is None else [client]
    return tuple(found)


def _with_updates(replies: TrainReplies, updates: list[Update]) -> TrainReplies:
    rest = iter(updates)
    accepted: list[tuple[list[int], Accepted]] = [
        (clients, reply._replace(updates=[next(rest) for _ in reply.updates]))
        for clients, reply in replies.accepted
    ]
    return replies._replace(accepted=accepted)
