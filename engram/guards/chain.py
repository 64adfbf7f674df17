"""Guards one after the other."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import accumulate
from typing import Any

from engram.core.checks import require
from engram.core.method import Objective, Slots, Update
from engram.guards.guard import IDLE, Guard
from engram.guards.places import At
from engram.guards.refusals import Refusal
from engram.guards.row_sums import Sums


def parted(found: Sequence[Update | Refusal]) -> tuple[list[Update], list[Refusal]]:
    """Sorts updates and refusals apart."""
    updates, refused = list[Update](), list[Refusal]()
    for x in found:
        if isinstance(x, Refusal):
            refused.append(x)
        else:
            updates.append(x)
    return updates, refused


def chain(*guards: Guard) -> Guard:
    """Returns one guard that acts as all of them, one after the other.

    What guards have encoded at a client is decoded at the server from the last to the first.

    Raises:
        ValueError: Two of them keep slots of one name.
    """
    keeps = [slot for guard in guards for slot in guard.keeps]
    require(len({*keeps}) == len(keeps), "slots that guards keep", sorted(keeps), "different")

    def after(at: At, guard: Guard) -> At:
        return at if guard.bound is IDLE.bound else at._replace(bound=guard.bound(at))

    def standing(at: At) -> list[tuple[Guard, At]]:
        return [*zip(guards, accumulate(guards, after, initial=at), strict=False)]

    leaving = [guard for guard in guards if guard.acts("leave")]

    def leave(at: At, update: Update, kept: Slots) -> tuple[Update, Slots]:
        found: Slots = {}
        for guard in leaving:
            update, more = guard.leave(at, update, {n: kept[n] for n in guard.keeps & kept.keys()})
            found |= more
        return update, found

    def send(at: At, update: Update) -> Update:
        for guard, place in standing(at):
            update = guard.send(place, update)
        return update

    def arrive(at: At, update: Update) -> Update | Refusal:
        for guard, place in reversed(standing(at)):
            if not guard.acts("arrive"):
                continue
            left, refused = parted([guard.arrive(place, update)])
            if refused:
                return refused[0]
            (update,) = left
        return update

    def admit(at: At, update: Update) -> Update | Refusal:
        for guard in guards:
            if guard.admit is not IDLE.admit:
                left, refused = parted([guard.admit(at, update)])
                if refused and update.clients:  # else nobody sent it
                    return refused[0]
                (update,) = left or [update]
            at = after(at, guard)
        return update

    def gather(at: At, updates: Sequence[Update]) -> Sequence[Update | Refusal]:
        refused = list[Refusal]()
        for guard in guards:
            if guard.gather is not IDLE.gather and len(updates) >= guard.least:
                updates, more = parted(guard.gather(at, updates))
                refused += more
            at = after(at, guard)
        return [*updates, *refused]

    def rows(objective: Objective, sums: Sums) -> Objective:
        return reduce(lambda x, guard: guard.rows(x, sums), guards, objective)

    def report(ranges: Mapping[str, float]) -> Mapping[str, float]:
        each = [guard.report(ranges) for guard in guards if guard.acts("report")]
        common = [name for name in each[0] if all(name in found for found in each)]
        return {name: math.hypot(*(found[name] for found in each)) for name in common}

    def acting(place: str, act: Callable[..., Any]) -> Any:
        """Returns ``act`` if any of them does anything at a place."""
        return act if any(guard.acts(place) for guard in guards) else getattr(IDLE, place)

    masks = any(guard.masks for guard in guards)
    return Guard(
        " + ".join(guard.name for guard in guards),
        alike=any(guard.alike for guard in guards),
        hides=any(guard.hides for guard in guards),
        keeps={*keeps},
        rows=acting("rows", rows),
        leave=acting("leave", leave),
        form=lambda at, slots: reduce(lambda x, guard: guard.form(at, x), guards, slots),
        send=acting("send", send),
        arrive=acting("arrive", arrive),
        admit=IDLE.admit if masks else admit,
        gather=acting("gather", gather),
        method=lambda method: reduce(lambda x, guard: guard.method(x), guards, method),
        broadcast=next((x.broadcast for x in guards if x.broadcast), None),
        report=acting("report", report),
        bound=lambda at: reduce(after, guards, at).bound,
        weigh=lambda rows: min((guard.weigh(rows) for guard in guards), default=math.inf),
        releases=lambda plan: sum((guard.releases(plan) for guard in guards), ()),
    )
