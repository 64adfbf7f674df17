"""Protections as values: the twin of the method protocol.

A *guard* protects a federation at some places on the way of an update. Whoever runs a round chains
the guards that were asked for, and calls the chain at these places; no engine, strategy or account
knows a guard by name. Guards do not know each other either: the bound of an update's change is
handed from guard to guard.

    rows --rows--> gradient --> sent --leave, send--> travels --arrive, admit, of one update-->
                                kept <--'              --gather, of a round--> merge
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from functools import reduce
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engram.core.method import Method, Objective, Slots, Update
from engram.core.streams import Stream
from engram.core.types import Batch, Params
from engram.guards.accounting.releases import Plan, Release
from engram.guards.facts import Fact
from engram.guards.noise import Noise

if TYPE_CHECKING:
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


def _absent(*args: object) -> NoReturn:
    raise LookupError(f"nobody has given the place where a guard acts what it asks for, {args}")


def fresh(noise: Noise, *keys: int) -> Callable[[int, Stream], Tensor]:
    """Returns ``(size, stream) -> numbers`` for one place, of which each call takes the next."""
    calls = Counter[Stream]()

    def normal(size: int, stream: Stream) -> Tensor:
        again = (calls[stream],) if calls[stream] else ()
        calls[stream] += 1
        return noise(size, stream, *keys, *again)

    return normal


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
        uniform: ``(size, stream) -> (size,)``, numbers in [0, 1): a function of seed, round and
            client, of which each call takes the next.
    """

    method: Method
    running: Set[str]
    asked: int
    server: Slots
    received: Callable[[Update], Slots]
    normal: Callable[[int, Stream], Tensor] = _absent
    drawn: Callable[[Stream], np.random.Generator] = _absent
    reply: Callable[[Update], object] = id
    note: Callable[[Update], object] = id
    bound: float = float("inf")
    sum: Sum = Sum()
    uniform: Callable[[int, Stream], Tensor] = lambda size, stream: torch.zeros(size)
    like: Slots = {}  # noqa: RUF012 - nobody writes to it


Sums = Callable[[Params, Batch, Tensor, float, Set[str] | None], Params]
"""``(w, batch, taken, bound, names) -> sum_i taken_i g_i min(1, bound / |g_i|)``: over the rows of
a batch, of the gradients of their losses by the parameters of these names."""


def _pass(_: At, x: Any) -> Any:
    return x


def _stay(_: At, update: Update, _kept: Slots) -> tuple[Update, Slots]:
    return update, {}


def _plain(objective: Objective, _: Sums) -> Objective:
    return objective


def _nothing(_: Plan) -> tuple[Release, ...]:
    return ()


def _exact(_: Mapping[str, float]) -> Mapping[str, float]:
    return {}


class Guard(NamedTuple):
    """A protection: by default it does nothing.

    Attributes:
        name: Its name, as in settings and messages.
        needs: Facts that must hold where it acts.
        ends: Facts that do not hold after it.
        gives: Facts that hold after it.
        alike: Whether clients must have equal weights.
        hides: Whether a client does not say that it failed, but sends a change of nothing.
        least: Fewest updates of a round that it gathers; fewer pass.
        asks: Fewest clients that a round must ask.
        per: Updates that it makes one of.
        keeps: Names of slots that are its memory of a client, stored beside what the method keeps.
        rows: ``(objective, sums) -> objective``: protects single rows, by how a client's gradients
            are taken. Batches are then ``Sampled``, and what of a method looks at rows otherwise is
            refused.
        leave: ``(at, update, kept) -> (update, kept)`` of one client, before its update leaves it.
            ``kept`` has the slots that it ``keeps``: none before the first round. Called under
            ``vmap``, where no guard keeps or encodes: it branches on no value.
        send: ``(at, update) -> update`` of the mean of a site's clients, as it leaves the site, in
            numbers that can be summed masked: only such sums reach the server.
        form: ``(at, slots) -> slots`` of an update after ``leave``, with shapes only.
        arrive: ``(at, update) -> update or Refusal``, at the server: undoes what ``leave`` has
            encoded; or, of a sum, what ``send`` has, and admits that itself, since others can look
            at no single update.
        admit: ``(at, update) -> update or Refusal``, of one update.
        gather: ``(at, updates) -> updates and Refusals`` of a round: leaves out, bounds, mixes, or
            makes one of them all. The mean of what is left goes to the merge; or, where a method's
            server sees each update, all of it. ``updates`` has one of no client if none came.
        method: Gives the server slots and a step of the guard's own.
        broadcast: The form in which the server's slots travel to clients; None: as they are.
        report: ``ranges -> deviations`` of the noise on a client's scores, by name, for the ranges
            of their metrics, of which some are infinite; a score without a deviation is not sent.
        bound: ``at -> `` the largest norm of an update's change after it.
        releases: ``plan -> `` the mechanisms that it applies.
    """

    name: str
    needs: Set[Fact] = frozenset()
    ends: Set[Fact] = frozenset()
    gives: Set[Fact] = frozenset()
    alike: bool = False
    hides: bool = False
    least: int = 1
    asks: int = 1
    per: int = 1
    keeps: Set[str] = frozenset()
    rows: Callable[[Objective, Sums], Objective] = _plain
    leave: Callable[[At, Update, Slots], tuple[Update, Slots]] = _stay
    send: Callable[[At, Update], Update] = _pass
    form: Callable[[At, Slots], Slots] = _pass
    arrive: Callable[[At, Update], Update | Refusal] = _pass
    admit: Callable[[At, Update], Update | Refusal] = _pass
    gather: Callable[[At, Sequence[Update]], Sequence[Update | Refusal]] = _pass
    method: Callable[[Method], Method] = lambda method: method
    broadcast: "Broadcast | None" = None
    report: Callable[[Mapping[str, float]], Mapping[str, float]] = _exact
    bound: Callable[[At], float] = lambda at: at.bound
    releases: Callable[[Plan], tuple[Release, ...]] = _nothing

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

    @property
    def at_client(self) -> bool:
        """Whether it acts at clients first."""
        return self.leaves or self.by_rows or self.masks

    @property
    def masks(self) -> bool:
        """Whether updates leave sites in masked sums alone."""
        return self.send is not _pass

    @property
    def encodes(self) -> bool:
        """Whether updates that leave must be decoded, each by itself."""
        return self.arrive is not _pass and not self.masks

    def completed(self, name: str) -> "Guard":
        """Returns it under a name, with the facts that follow from its places."""
        each = self.encodes or self.admit is not _pass
        return self._replace(
            name=name,
            needs=self.needs | ({Fact.EACH} if each else set()),
            ends=self.ends | (set() if self.releases is _nothing else {Fact.OPEN}),
            gives=self.gives | ({Fact.ROWS} if self.by_rows else set()),
        )


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

    def after(at: At, guard: Guard) -> At:
        return at._replace(bound=guard.bound(at))

    def standing(at: At) -> list[tuple[Guard, At]]:
        return [*zip(guards, accumulate(guards, after, initial=at), strict=False)]

    def leave(at: At, update: Update, kept: Slots) -> tuple[Update, Slots]:
        found: Slots = {}
        for guard in guards:
            update, more = guard.leave(at, update, {n: kept[n] for n in guard.keeps & kept.keys()})
            found |= more
        return update, found

    def send(at: At, update: Update) -> Update:
        for guard, place in standing(at):
            update = guard.send(place, update)
        return update

    def arrive(at: At, update: Update) -> Update | Refusal:
        for guard, place in reversed(standing(at)):
            left, refused = parted([guard.arrive(place, update)])
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

    def rows(objective: Objective, sums: Sums) -> Objective:
        return reduce(lambda x, guard: guard.rows(x, sums), guards, objective)

    masks = any(guard.masks for guard in guards)
    return Guard(
        " + ".join(guard.name for guard in guards),
        alike=any(guard.alike for guard in guards),
        hides=any(guard.hides for guard in guards),
        needs=frozenset[Fact]().union(*(guard.needs for guard in guards)),
        keeps=frozenset[str]().union(*(guard.keeps for guard in guards)),
        rows=rows if any(guard.by_rows for guard in guards) else _plain,
        leave=leave if any(guard.leaves for guard in guards) else _stay,
        form=lambda at, slots: reduce(lambda x, guard: guard.form(at, x), guards, slots),
        send=send if masks else _pass,
        arrive=arrive if any(guard.arrive is not _pass for guard in guards) else _pass,
        admit=admit if any(guard.admit is not _pass for guard in guards) and not masks else _pass,
        gather=gather if any(guard.gather is not _pass for guard in guards) else _pass,
        method=lambda method: reduce(lambda x, guard: guard.method(x), guards, method),
        broadcast=next((x.broadcast for x in guards if x.broadcast), None),
        report=next((guard.report for guard in guards if guard.reports), _exact),
        bound=lambda at: reduce(after, guards, at).bound,
        releases=lambda plan: sum((guard.releases(plan) for guard in guards), ()),
    )
