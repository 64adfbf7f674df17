"""Protections as values: the twin of the method protocol.

A *guard* protects a federation at some places on the way of an update. Whoever runs a round chains
the guards that were asked for, and calls the chain at these places; no engine, strategy or account
knows a guard by name. Guards do not know each other either: the bound of an update's change is
handed from guard to guard.

    rows --rows--> gradient --> sent --leave, send--> travels --arrive, admit, of one update-->
                                kept <--'              --gather, of a round--> merge
"""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from engram.core.method import Method, Objective, Slots, Update
from engram.guards.accounting.releases import Plan, Release
from engram.guards.facts import Fact
from engram.guards.places import At
from engram.guards.refusals import Refusal
from engram.guards.row_sums import Sums

if TYPE_CHECKING:
    from engram.guards.compression.delta_broadcast import Broadcast


def _pass(_: At, x: Any) -> Any:
    return x


class Guard(NamedTuple):
    """A protection: by default it does nothing.

    Attributes:
        name: Its name, as in settings and messages.
        needs: Facts that must hold where it acts.
        ends: Facts that do not hold after it.
        gives: Facts that hold after it.
        awaits: Facts that must hold where its updates arrive, after all guards.
        alike: Whether clients must have equal weights.
        hides: Whether a client does not say that it failed, but sends a change of nothing.
        least: Fewest updates of a round for ``gather`` to act on; fewer pass unchanged.
        asks: Fewest clients that a round must ask.
        per: Number of updates that it merges into one.
        keeps: Names of slots that are its memory of a client, stored beside what the method keeps.
        rows: ``(objective, sums) -> objective``: protects single rows, by how a client's gradients
            are taken. Batches are then ``Sampled``; whatever looks at rows otherwise is refused.
        leave: ``(at, update, kept) -> (update, kept)`` of one client, before its update leaves it.
            ``kept`` has the slots that it ``keeps``: none before the first round. Called under
            ``vmap``, where no guard keeps or encodes: it branches on no value.
        send: ``(at, update) -> update`` of the mean of a site's clients, as it leaves the site, in
            numbers that can be summed masked: only such sums reach the server.
        form: ``(at, slots) -> slots`` of an update after ``leave``, with shapes only.
        arrive: ``(at, update) -> update or Refusal``, at the server: undoes what ``leave`` has
            encoded; or, of a sum, what ``send`` has, and admits it: others see no single update.
        admit: ``(at, update) -> update or Refusal``, of one update. That of no client, in a round
            of a secret cohort, is never left out.
        gather: ``(at, updates) -> updates and Refusals`` of a round: leaves out, bounds, mixes, or
            makes one of them all. The mean of what is left goes to the merge; or, where a method's
            server sees each update, all of it. ``updates`` has one of no client if none came.
        method: Gives the server slots and a step of the guard's own.
        broadcast: The form in which the server's slots travel to clients; None: as they are.
        report: ``ranges -> deviations`` of the noise on a client's scores, by name, for the ranges
            of their metrics, of which some are infinite; a score without a deviation is not sent.
            The noise of several guards is added.
        bound: ``at -> `` the largest norm of an update's change after it.
        releases: ``plan -> `` the mechanisms that it applies.
        weigh: ``rows -> `` the most of a client's rows that count, where clients weigh by rows, for
            those of all clients of the federation (0: unknown).
    """

    name: str
    needs: Set[Fact] = frozenset()
    ends: Set[Fact] = frozenset()
    gives: Set[Fact] = frozenset()
    awaits: Set[Fact] = frozenset()
    alike: bool = False
    hides: bool = False
    least: int = 1
    asks: int = 1
    per: int = 1
    keeps: Set[str] = frozenset()
    rows: Callable[[Objective, Sums], Objective] = lambda objective, sums: objective
    leave: Callable[[At, Update, Slots], tuple[Update, Slots]] = lambda at, update, _: (update, {})
    send: Callable[[At, Update], Update] = _pass
    form: Callable[[At, Slots], Slots] = _pass
    arrive: Callable[[At, Update], Update | Refusal] = _pass
    admit: Callable[[At, Update], Update | Refusal] = _pass
    gather: Callable[[At, Sequence[Update]], Sequence[Update | Refusal]] = _pass
    method: Callable[[Method], Method] = lambda method: method
    broadcast: "Broadcast | None" = None
    report: Callable[[Mapping[str, float]], Mapping[str, float]] = lambda ranges: {}
    bound: Callable[[At], float] = lambda at: at.bound
    releases: Callable[[Plan], tuple[Release, ...]] = lambda plan: ()
    weigh: Callable[[Sequence[int]], float] = lambda rows: math.inf

    def acts(self, *places: str) -> bool:
        """Returns whether it does anything at one of these places."""
        return any(getattr(self, place) is not getattr(IDLE, place) for place in places)

    @property
    def masks(self) -> bool:
        """Whether updates leave sites in masked sums alone."""
        return self.acts("send")

    @property
    def encodes(self) -> bool:
        """Whether updates that leave must be decoded, each by itself."""
        return self.acts("arrive") and not self.masks


IDLE: Final = Guard("")
"""A guard that does nothing."""
