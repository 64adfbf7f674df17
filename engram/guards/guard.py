"""Protections as values: the twin of the method protocol.

A *guard* protects a federation at some places on the way of an update. Whoever runs a round chains
the guards that were asked for, and calls the chain at these places; no engine, strategy or account
knows a guard by name. Guards do not know each other either: the bound of an update's change is
handed from guard to guard.

    sent --leave--> travels --arrive--> --admit, of one update--> --gather, of a round--> merge
    kept <--'
"""

from collections.abc import Callable, Sequence, Set
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engram.core.method import Method, Slots, Update
from engram.core.streams import Stream
from engram.guards.compression.delta_broadcast import Broadcast


class Refusal(NamedTuple):
    """Why an update is left out of a round.

    Attributes:
        kind: In a word, by which records count it: ``size``, ``range``, ``malformed``.
        reason: In a line.
        update: The update, as it came to the guard.
    """

    kind: Literal["size", "range", "malformed"]
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
        uniform: ``(size, stream) -> (size,)``, numbers in [0, 1): a function of seed, round and
            client, of which each call takes the next.
        like: What clients compute, for its names and shapes.
    """

    method: Method
    running: Set[str]
    asked: int
    server: Slots
    received: Callable[[Update], Slots]
    normal: Callable[[int, Stream], Tensor]
    drawn: Callable[[Stream], np.random.Generator]
    reply: Callable[[Update], object] = id
    note: Callable[[Update], object] = id
    bound: float = float("inf")
    uniform: Callable[[int, Stream], Tensor] = lambda size, stream: torch.zeros(size)
    like: Slots = {}  # noqa: RUF012 - a NamedTuple's default, which nobody changes


def _pass(at: At, x: Any) -> Any:
    del at
    return x


def _stay(at: At, update: Update, kept: Slots) -> tuple[Update, Slots]:
    del at, kept
    return update, {}


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
        keeps: Names of slots that are its memory of a client, stored beside what the method keeps.
        leave: ``(at, update, kept) -> (update, kept)`` of one client, before its update leaves it.
            ``kept`` has the slots that it ``keeps``: none before the first round. Called under
            ``vmap``, where no guard keeps or encodes: it branches on no value.
        form: ``(at, slots) -> slots`` of an update after ``leave``, with shapes only.
        arrive: ``(at, update) -> update or Refusal``, at the server: decodes what ``leave`` has
            encoded.
        admit: ``(at, update) -> update or Refusal``, of one update.
        gather: ``(at, updates) -> updates and Refusals`` of a round: leaves out, bounds, mixes, or
            makes one of them all. The mean of what is left goes to the merge; or, where a method's
            server sees each update, all of it. ``updates`` has one of no client if none came.
        method: Gives the server slots and a step of the guard's own.
        broadcast: The form in which the server's slots travel to clients; None: as they are.
        bound: ``at -> `` the largest norm of an update's change after it.
    """

    name: str
    alike: bool = False
    hides: bool = False
    least: int = 1
    single: bool = False
    keeps: Set[str] = frozenset()
    leave: Callable[[At, Update, Slots], tuple[Update, Slots]] = _stay
    form: Callable[[At, Slots], Slots] = _pass
    arrive: Callable[[At, Update], Update | Refusal] = _pass
    admit: Callable[[At, Update], Update | Refusal] = _pass
    gather: Callable[[At, Sequence[Update]], Sequence[Update | Refusal]] = _pass
    method: Callable[[Method], Method] = same
    broadcast: Broadcast | None = None
    bound: Callable[[At], float] = lambda at: at.bound

    @property
    def leaves(self) -> bool:
        """Whether it acts on updates before they leave clients."""
        return self.leave is not _stay

    @property
    def encodes(self) -> bool:
        """Whether updates that leave must be decoded, each by itself."""
        return self.arrive is not _pass


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
    """

    def leave(at: At, update: Update, kept: Slots) -> tuple[Update, Slots]:
        after: Slots = {}
        for guard in guards:
            update, more = guard.leave(at, update, {n: kept[n] for n in guard.keeps & kept.keys()})
            after |= more
        return update, after

    def form(at: At, slots: Slots) -> Slots:
        for guard in guards:
            slots = guard.form(at, slots)
        return slots

    def arrive(at: At, update: Update) -> Update | Refusal:
        for guard in reversed(guards):
            left, refused = parted([guard.arrive(at, update)])
            if refused:
                return refused[0]
            (update,) = left
        return update

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
        for guard in guards:
            method = guard.method(method)
        return method

    return Guard(
        " + ".join(guard.name for guard in guards),
        alike=any(guard.alike for guard in guards),
        hides=any(guard.hides for guard in guards),
        single=any(guard.single for guard in guards),
        keeps=frozenset[str]().union(*(guard.keeps for guard in guards)),
        leave=leave if any(guard.leaves for guard in guards) else _stay,
        form=form,
        arrive=arrive if any(guard.encodes for guard in guards) else _pass,
        admit=admit if any(guard.admit is not _pass for guard in guards) else _pass,
        gather=gather if any(guard.gather is not _pass for guard in guards) else _pass,
        method=method,
        broadcast=next((x.broadcast for x in guards if x.broadcast), None),
        bound=bound,
    )
