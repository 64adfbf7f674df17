"""Comparison of a round's updates by the norms of their changes."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from engram.core.method import Update
from engram.core.slots import flat
from engram.core.tree import distance
from engram.core.types import Params
from engram.guards.changes import changed, is_running, origin
from engram.guards.guard import Guard
from engram.guards.places import At
from engram.guards.refusals import Refusal

_TIMES: Final = 100  # norms of honest updates of one round differ by a smaller factor
_LEAST: Final = 3  # updates among which one is usual: of two, nobody knows which


def _refuse_far(at: At, updates: Sequence[Update]) -> Sequence[Update | Refusal]:
    moved: dict[object, float] = {}
    for update in updates:
        far = distance(flat(update.slots), origin(at, update))
        moved[at.reply(update)] = max(far, moved.get(at.reply(update), 0.0))
    if len(moved) < 2:
        return updates
    usual = float(np.median([*moved.values()])) if len(moved) >= _LEAST else 0.0
    if usual == 0:
        size = distance(flat(at.received(updates[0])))
        usual = max(min(moved.values()), _TIMES * max(1.0, size))
    reason = "its model moved by {:.3g}, {} times what is usual, or more"
    return [
        u if far <= _TIMES * usual else Refusal("size", reason.format(far, _TIMES), u)
        for u, far in ((u, moved[at.reply(u)]) for u in updates)
    ]


FAR: Final = Guard("distance", least=2, gather=_refuse_far)
"""Refuses replies with models that moved much farther than most, which may do as much harm as NaN.

A node is one of many, however many clients it hosts. Of two replies, and where most models have not
moved, there is no usual distance: one is then refused if it is farther than the other by that
factor, and far beyond the old model's own size.
"""


def norm_bound(most: float) -> Guard:
    """Builds a bound on the norms of changes: ``most`` >= 1 times the median one.

    Sun, Kairouz, Suresh, McMahan. Can You Really Backdoor Federated Learning? 2019, have a constant
    in its place. Models count together, since small parts of them differ most between honest
    clients; running statistics, and every other slot, count by themselves: the length of a model's
    change says nothing of that of a statistic. What most clients leave as it is has no bound.
    """

    def gather(at: At, updates: Sequence[Update]) -> Sequence[Update]:
        lengths = [_lengths(at, update) for update in updates]
        limits = {
            group: most * float(np.median([own[group] for own in lengths])) for group in lengths[0]
        }
        return [_bounded(at, u, own, limits) for u, own in zip(updates, lengths, strict=True)]

    return Guard("norm-bound", least=_LEAST, gather=gather)


def _bounded(at: At, update: Update, lengths: dict[str, float], limits: dict[str, float]) -> Update:
    long = [group for group, length in lengths.items() if 0 < limits[group] < length]
    if not long:
        return update
    at.note(update)
    begun, sent, near = origin(at, update), flat(update.slots), Params()
    for path in sent:
        if (group := _group(at, path)) in long:
            change = sent[path].double() - begun[path].double()
            near[path] = change * (limits[group] / lengths[group])
    return changed(at, update, near)


def _lengths(at: At, update: Update) -> dict[str, float]:
    begun, sent = origin(at, update), flat(update.slots)
    groups: dict[str, list[str]] = {}
    for path in sent:
        groups.setdefault(_group(at, path), []).append(path)
    return {group: distance({p: sent[p] for p in paths}, begun) for group, paths in groups.items()}


def _group(at: At, path: str) -> str:
    if is_running(at.method, at.running, path):
        return "running statistics"
    slot = path.partition("/")[0]
    return "models" if at.method.kinds[slot] == "model" else slot
