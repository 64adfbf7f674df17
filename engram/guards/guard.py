"""Protections as values: the twin of the method protocol.

A *guard* protects a federation at some places on the way of an update. Whoever runs a round chains
the guards that were asked for, and calls the chain at these places; no engine, strategy or account
knows a guard by name. Guards do not know each other either: the bound of an update's change is
handed from guard to guard.

    sent --leave, send--> travels --arrive, admit, of one update--> --gather, of a round--> merge
"""

import os
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
from torch import Tensor

from engram.core.method import Method, Slots, Update
from engram.core.streams import Stream
from engram.core.types import Params


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


def _absent(*args: object) -> NoReturn:
    raise LookupError(f"nobody has given the place where a guard acts what it asks for, {args}")


class Sum(NamedTuple):
    """A sum over parties: sites, each of which sends the part of its clients.

    Attributes:
        clients: Clients of all parties.
        parties: Parties, n.
        least: Parties without which there is no sum, t.
        most: Largest weight of a client, as a number of rows.
        mask: ``size -> (size,)``, numbers modulo 2^32, which vanish from the sum.
        entropy: ``size -> bytes``, secret and uniform.
    """

    clients: int = 1
    parties: int = 1
    least: int = 1
    most: int = 1
    mask: Callable[[int], npt.NDArray[np.uint32]] = _absent
    entropy: Callable[[int], bytes] = os.urandom


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
        sum: The sum that an update is a part of, or all of.
        like: Slots that a client sends, of which a sum has names and shapes alone.
    """

    method: Method
    running: Set[str]
    asked: int
    server: Slots
    received: Callable[[Update], Slots]
    normal: Callable[[int, Stream], Tensor] = _absent
    drawn: Callable[[Stream], np.random.Generator] = _absent
    reply: Callable[[Update], object] = _absent
    note: Callable[[Update], object] = _absent
    bound: float = float("inf")
    sum: Sum = Sum()
    like: Slots = {}  # noqa: RUF012 - nobody writes to it


Drawn = Mapping[Stream, Params]
"""Numbers like those of a change, by purpose."""


def _pass(at: At, x: Any) -> Any:
    del at
    return x


def _stay(change: Params, drawn: Drawn) -> Params:
    del drawn
    return change


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
        leave: ``(change, drawn) -> change`` of one client, before its update leaves it: by path, in
            float64, without running statistics. ``drawn`` has arrays like the change, by purpose.
            Called under ``vmap``: it branches on no value.
        send: ``(at, update) -> update`` of the mean of a site's clients, as it leaves the site, in
            numbers that can be summed masked: only such sums reach the server.
        arrive: ``(at, update) -> update``, of a sum of these: undoes ``send``. What it makes is
            admitted by the guard itself, since others can look at no single update.
        admit: ``(at, update) -> update or Refusal``, of one update.
        gather: ``(at, updates) -> updates and Refusals`` of a round: leaves out, bounds, mixes, or
            makes one of them all. The mean of what is left goes to the merge; or, where a method's
            server sees each update, all of it. ``updates`` has one of no client if none came.
        method: Gives the server slots and a step of the guard's own.
        bound: ``at -> `` the largest norm of an update's change after it.
    """

    name: str
    alike: bool = False
    hides: bool = False
    least: int = 1
    single: bool = False
    draws: Set[Stream] = frozenset()
    leave: Callable[[Params, Drawn], Params] = _stay
    send: Callable[[At, Update], Update] = _pass
    arrive: Callable[[At, Update], Update] = _pass
    admit: Callable[[At, Update], Update | Refusal] = _pass
    gather: Callable[[At, Sequence[Update]], Sequence[Update | Refusal]] = _pass
    method: Callable[[Method], Method] = same
    bound: Callable[[At], float] = lambda at: at.bound

    @property
    def leaves(self) -> bool:
        """Whether it acts on updates before they leave clients."""
        return self.leave is not _stay

    @property
    def masks(self) -> bool:
        """Whether updates leave sites in masked sums alone."""
        return self.send is not _pass


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

    def standing(at: At) -> list[tuple[Guard, At]]:
        found = list[tuple[Guard, At]]()
        for guard in guards:
            found.append((guard, at))
            at = at._replace(bound=guard.bound(at))
        return found

    def leave(change: Params, drawn: Drawn) -> Params:
        for guard in guards:
            change = guard.leave(change, drawn)
        return change

    def send(at: At, update: Update) -> Update:
        for guard, place in standing(at):
            update = guard.send(place, update)
        return update

    def arrive(at: At, update: Update) -> Update:
        for guard, place in reversed(standing(at)):
            update = guard.arrive(place, update)
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

    masks = any(guard.masks for guard in guards)
    return Guard(
        " + ".join(guard.name for guard in guards),
        alike=any(guard.alike for guard in guards),
        hides=any(guard.hides for guard in guards),
        single=any(guard.single for guard in guards),
        draws=frozenset[Stream]().union(*(guard.draws for guard in guards)),
        leave=leave if any(guard.leaves for guard in guards) else _stay,
        send=send if masks else _pass,
        arrive=arrive,
        admit=admit if any(guard.admit is not _pass for guard in guards) and not masks else _pass,
        gather=gather if any(guard.gather is not _pass for guard in guards) else _pass,
        method=method,
        bound=bound,
    )
