"""Protections as values: the twin of the method protocol.

A *guard* protects a federation at some places on the way of an update. Whoever runs a round chains
the guards that were asked for, and calls the chain at these places; no engine, strategy or account
knows a guard by name. Guards do not know each other either: the bound of an update's change is
handed from guard to guard.

    rows --rows--> gradient --> sent --leave--> travels --admit, of one update-->
    --gather, of a round--> merge
"""

from collections.abc import Callable, Mapping, Sequence, Set
from functools import reduce
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import Tensor

from engram.core.method import Method, Objective, Slots, Update
from engram.core.streams import Stream
from engram.core.types import Batch, Params
from engram.guards.accounting.releases import Plan, Release


class Refusal(NamedTuple):
    """Why an update is left out of a round.

    Attributes:
        kind: In a word, by which records count it: ``size``, ``range``.
        reason: In a line.
        update: The update, as it came to the guard.
    """

    kind: Literal["size", "range"]
    reason: str
    update: Update


class At(NamedTuple):
    """Where guards act.

    Attributes:
        method: The method, as the chain has changed it.
        running: Names of running statistics, which no guard bounds or adds noise to.
        asked: Clients asked in a round; of a random cohort, their expected number.
        server: The server's slots.
        received: ``update -> slots`` that its client received; of a mean, those of all alike.
        normal: ``(size, stream) -> (size,)``, secret standard normal numbers; the same never twice.
        drawn: ``stream -> generator``, which is a function of seed and round.
        reply: ``update -> `` a key of the reply that it came in, with others of its node.
        note: Called with an update that a guard has shortened for its length.
        bound: Largest norm of an update's change where the guard stands; infinite: none is known.
    """

    method: Method
    running: Set[str]
    asked: int
    server: Slots
    received: Callable[[Update], Slots]
    normal: Callable[[int, Stream], Tensor]
    drawn: Callable[[Stream], np.random.Generator]
    reply: Callable[[Update], object]
    note: Callable[[Update], object]
    bound: float = float("inf")


Drawn = Mapping[Stream, Params]
"""Numbers like those of a change, by purpose."""

Sums = Callable[[Params, Batch, Tensor, float, Set[str] | None], Params]
"""``(w, batch, taken, bound, names) -> sum_i taken_i g_i min(1, bound / |g_i|)``: over the rows of
a batch, of the gradients of their losses by the parameters of these names."""


def _pass(at: At, x: Any) -> Any:
    del at
    return x


def _stay(change: Params, drawn: Drawn) -> Params:
    del drawn
    return change


def _plain(objective: Objective, sums: Sums) -> Objective:
    del sums
    return objective


def _exact(ranges: Mapping[str, float]) -> Mapping[str, float]:
    del ranges
    return {}


def same(x: Any) -> Any:
    """Returns its argument."""
    return x


class Guard(NamedTuple):
    """A protection: by default it does nothing.

    Attributes:
        name: Its name, as in settings and messages.
        alike: Whether clients must have equal weights.
        hides: Whether a client does not say that it failed, but sends a change of nothing.
        least: Fewest updates of a round that it gathers; fewer pass.
        single: Whether it looks at single clients' updates, so that no node may add them up.
        draws: Purposes of the standard normal numbers that ``leave`` takes, one for each number of
            a change: they are secret, and no two draws alike.
        rows: ``(objective, sums) -> objective``: protects single rows, by how a client's gradients
            are taken. Batches are then ``Sampled``, and what of a method looks at rows otherwise is
            refused.
        leave: ``(change, drawn) -> change`` of one client, before its update leaves it: by path, in
            float64, without running statistics. ``drawn`` has arrays like the change, by purpose.
            Called under ``vmap``: it branches on no value.
        admit: ``(at, update) -> update or Refusal``, of one update.
        gather: ``(at, updates) -> updates and Refusals`` of a round: leaves out, bounds, mixes, or
            makes one of them all. The mean of what is left goes to the merge; or, where a method's
            server sees each update, all of it. ``updates`` has one of no client if none came.
        method: Gives the server slots and a step of the guard's own.
        report: ``ranges -> deviations`` of the noise on a client's scores, by name, for the ranges
            of their metrics, of which some are infinite; a score without a deviation is not sent.
        bound: ``at -> `` the largest norm of an update's change after it.
        releases: ``plan -> `` the mechanisms that it applies.
    """

    name: str
    alike: bool = False
    hides: bool = False
    least: int = 1
    single: bool = False
    draws: Set[Stream] = frozenset()
    rows: Callable[[Objective, Sums], Objective] = _plain
    leave: Callable[[Params, Drawn], Params] = _stay
    admit: Callable[[At, Update], Update | Refusal] = _pass
    gather: Callable[[At, Sequence[Update]], Sequence[Update | Refusal]] = _pass
    method: Callable[[Method], Method] = same
    report: Callable[[Mapping[str, float]], Mapping[str, float]] = _exact
    bound: Callable[[At], float] = lambda at: at.bound
    releases: Callable[[Plan], tuple[Release, ...]] = lambda plan: ()

    @property
    def by_rows(self) -> bool:
        """Whether it protects single rows, so that each step draws its rows at random."""
        return self.rows is not _plain

    @property
    def reports(self) -> bool:
        """Whether clients' scores have noise, or stay with them."""
        return self.report is not _exact

    @property
    def leaves(self) -> bool:
        """Whether it acts on updates before they leave clients."""
        return self.leave is not _stay


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
    """Returns one guard that acts as all of them, one after the other."""

    def rows(objective: Objective, sums: Sums) -> Objective:
        return reduce(lambda x, guard: guard.rows(x, sums), guards, objective)

    def leave(change: Params, drawn: Drawn) -> Params:
        for guard in guards:
            change = guard.leave(change, drawn)
        return change

    def admit(at: At, update: Update) -> Update | Refusal:
        for guard in guards:
            left, refused = parted([guard.admit(at, update)])
            if refused:
                return refused[0]
            (update,), at = left, at._replace(bound=guard.bound(at))
        return update

    def gather(at: At, updates: Sequence[Update]) -> Sequence[Update | Refusal]:
        refused = list[Refusal]()
        for guard in guards:
            if len(updates) >= guard.least:
                updates, more = parted(guard.gather(at, updates))
                refused += more
            at = at._replace(bound=guard.bound(at))
        return [*updates, *refused]

    def bound(at: At) -> float:
        for guard in guards:
            at = at._replace(bound=guard.bound(at))
        return at.bound

    def method(method: Method) -> Method:
        return reduce(lambda x, guard: guard.method(x), guards, method)

    def releases(plan: Plan) -> tuple[Release, ...]:
        return sum((guard.releases(plan) for guard in guards), ())

    return Guard(
        " + ".join(guard.name for guard in guards),
        alike=any(guard.alike for guard in guards),
        hides=any(guard.hides for guard in guards),
        single=any(guard.single for guard in guards),
        draws=frozenset[Stream]().union(*(guard.draws for guard in guards)),
        rows=rows if any(guard.by_rows for guard in guards) else _plain,
        leave=leave if any(guard.leaves for guard in guards) else _stay,
        admit=admit if any(guard.admit is not _pass for guard in guards) else _pass,
        gather=gather if any(guard.gather is not _pass for guard in guards) else _pass,
        method=method,
        report=next((guard.report for guard in guards if guard.reports), _exact),
        bound=bound,
        releases=releases,
    )
