"""Protections of users: their errors are named, and their memories lie apart."""

from collections.abc import Callable
from typing import Any, Final

from engram.core.checks import must
from engram.core.method import Slots, Update
from engram.guards.accounting.releases import Plan, Release
from engram.guards.facts import Fact
from engram.guards.guard import IDLE, Guard
from engram.guards.places import At
from engram.guards.registry import GUARDS, named_guards
from engram.settings.errors import EngramError, Refused, RunStopped, one_line

_LONGEST: Final = 200  # characters of an error, so that what to do is read, too


def guards_of_users(text: str) -> list[Guard]:
    """Builds the guards that the setting ``guards`` names, in its order.

    Raises:
        Refused: A function raises, or builds no guard; or one that keeps slots is named twice.
    """
    found = list[Guard]()
    for name, number in named_guards(text):
        try:
            guard = completed(GUARDS[name](*number), name)
        except Exception as error:  # anybody's function
            got = f"{type(error).__name__}: {error}"
            expected = "a function that returns an engram.guards.guard.Guard"
            raise Refused(must(f"guard {name}", got, expected)) from error
        if guard.keeps and any(other.name == name for other in found):
            expected = f"{name} once, since it keeps slots of a client"
            raise Refused(must("guards", text, expected))
        found.append(guard)
    return found


def completed(guard: Guard, name: str) -> Guard:
    """Returns a user's guard under its name, with the facts that follow from its places.

    What it raises is one line that names it. At a client that is no ``EngramError``, since it may
    quote rows, which do not leave a node. Its slots are stored under its name.
    """

    def apart(at: At, update: Update, kept: Slots) -> tuple[Update, Slots]:
        mine = {slot: kept[own] for slot, own in slots.items() if own in kept}
        update, found = guard.leave(at, update, mine)
        if more := sorted(found.keys() - slots.keys()):
            raise ValueError(must("keeps", sorted(slots), f"all slots that it returns, {more} too"))
        return update, {slots[slot]: x for slot, x in found.items()}

    def named(place: str, act: Any, fault: Callable[[str], Exception] = Refused) -> Any:
        if act is getattr(IDLE, place):
            return act

        def acting(*given: Any) -> Any:
            try:
                found = act(*given)
                if found is None:
                    raise TypeError("it returned nothing")
            except EngramError:
                raise
            except Exception as error:  # anybody's guard
                words = f"{place} raised {type(error).__name__}: {error}"
                words = one_line(f"guard {name}: {words}", longest=_LONGEST)
                raise fault(f"{words}; mend it, or leave it out of guards") from error
            return found

        return acting

    def releases(plan: Plan) -> tuple[Release, ...]:
        found = tuple(guard.releases(plan))
        for release in found:
            _ = release.influence  # which checks the multiplier
        return found

    slots = {slot: f"{name}:{slot}" for slot in guard.keeps}
    each = guard.encodes or guard.admit is not IDLE.admit
    rows = {Fact.GRADIENTS} if guard.by_rows else set[Fact]()  # of which one guard takes the sums
    noisy = guard.releases is not IDLE.releases
    return guard._replace(
        name=name,
        needs=guard.needs | ({Fact.EACH} if each else set()) | rows,
        ends=guard.ends | ({Fact.OPEN} if noisy else set()) | rows,
        gives=guard.gives | ({Fact.ROWS} if guard.by_rows else set()),
        keeps=frozenset(slots.values()),
        rows=named("rows", guard.rows),
        leave=named("leave", apart if guard.leaves else guard.leave, ValueError),
        send=named("send", guard.send, ValueError),
        form=named("form", guard.form),
        arrive=named("arrive", guard.arrive, RunStopped),
        admit=named("admit", guard.admit, RunStopped),
        gather=named("gather", guard.gather, RunStopped),
        method=named("method", guard.method),
        report=named("report", guard.report),
        bound=named("bound", guard.bound, RunStopped),
        weigh=named("weigh", guard.weigh, RunStopped),
        releases=named("releases", releases if noisy else guard.releases),
    )
