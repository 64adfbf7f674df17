"""Protections of users: their errors are named, and their memories lie apart."""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from numbers import Real
from typing import Any, Final

from engram.core.checks import brief, must
from engram.core.method import Method, Objective, Slots, Update
from engram.guards.accounting.releases import Plan, Release
from engram.guards.facts import Fact
from engram.guards.guard import Guard
from engram.guards.places import At
from engram.guards.refusals import Refusal
from engram.guards.registry import GUARDS, named_guards
from engram.settings.errors import EngramError, Refused, RunStopped, one_line

_LONGEST: Final = 200  # characters of an error, so that what to do is read, too
_SOLVED: Final = "noise_multiplier"
_EXPECTED: Final = "a function that returns an engram.guards.guard.Guard"
_UPDATE: Final = Update, Refusal


def guards_of_users(text: str, multiplier: float) -> list[Guard]:
    """Builds the guards that the setting ``guards`` names, in its order.

    Those whose argument is ``noise_multiplier``, and that are given no number, get ``multiplier``.

    Raises:
        Refused: A function raises, or builds no guard; or one that keeps slots is named twice.
    """
    found = list[Guard]()
    for name, number in named_guards(text):
        try:
            function = GUARDS[name]
            solved = not number and _SOLVED in signature(function).parameters
            built = function(multiplier) if solved else function(*number)
            found.append(completed(built, name, solved=solved))
        except Exception as error:  # anybody's function
            told = must(f"guard {name}", f"{type(error).__name__}: {error}", _EXPECTED)
            raise Refused(told) from error
        if found[-1].keeps and any(guard.name == name for guard in found[:-1]):
            expected = f"{name} once, since it keeps slots of a client"
            raise Refused(must("guards", text, expected))
    return found


def completed(guard: Guard, name: str, *, solved: bool = False) -> Guard:
    """Returns a user's guard under its name, with the facts that follow from its places.

    What it raises is one line that names it; at a client no ``EngramError``, since it may quote
    rows, which do not leave a node. Its slots are stored under its name.
    """

    def apart(at: At, update: Update, kept: Slots) -> tuple[Update, Slots]:
        mine = {slot: kept[own] for slot, own in slots.items() if own in kept}
        update, found = guard.leave(at, update, mine)
        if more := sorted(found.keys() - slots.keys()):
            raise ValueError(must("keeps", sorted(slots), f"all slots that it returns, {more} too"))
        return _checked(update, Update), {slots[slot]: x for slot, x in found.items()}

    def gathered(at: At, updates: Sequence[Update]) -> Sequence[Update | Refusal]:
        return [_checked(x, *_UPDATE) for x in guard.gather(at, updates)]

    def stepped(method: Method) -> Method:
        found: Method = _checked(guard.method(method), Method)
        found.server.send(found.server.start, [])  # which fails here, and not in a round
        return found

    def releases(plan: Plan) -> tuple[Release, ...]:
        found = tuple(_checked(release, Release) for release in guard.releases(plan))
        _ = [release.influence for release in found]  # which checks the multipliers
        return found

    def named(
        place: str, act: Any, *types: type, fault: Callable[[str], Exception] = Refused
    ) -> Any:
        def acting(*given: Any) -> Any:
            try:
                return _checked(act(*given), *types)
            except EngramError:
                raise
            except Exception as error:  # anybody's guard
                words = f"{place} raised {type(error).__name__}: {error}"
                words = one_line(f"guard {name}: {words}", longest=_LONGEST)
                raise fault(f"{words}; mend it, or leave it out of guards") from error

        return acting if guard.acts(place) else getattr(guard, place)

    slots = {slot: f"{name}:{slot}" for slot in guard.keeps}
    rows = {Fact.GRADIENTS} if guard.acts("rows") else set[Fact]()  # one guard takes their sums
    awaits = {Fact.EACH} if guard.encodes or guard.acts("admit") else set[Fact]()
    awaits |= {Fact.MASKED} if guard.masks else set()
    return guard._replace(
        name=name,
        needs=guard.needs | rows,
        ends=guard.ends | ({Fact.OPEN} if guard.acts("releases") else set()) | rows,
        gives=guard.gives | ({Fact.ROWS} if rows else {Fact.SOLVED} if solved else set()),
        awaits=guard.awaits | awaits,
        keeps=frozenset(slots.values()),
        rows=named("rows", guard.rows, Objective),
        leave=named("leave", apart, tuple, fault=ValueError),
        send=named("send", guard.send, Update, fault=ValueError),
        form=named("form", guard.form, Mapping),
        arrive=named("arrive", guard.arrive, *_UPDATE, fault=RunStopped),
        admit=named("admit", guard.admit, *_UPDATE, fault=RunStopped),
        gather=named("gather", gathered, list, fault=RunStopped),
        method=named("method", stepped, Method),
        report=named("report", guard.report, Mapping),
        bound=named("bound", guard.bound, Real, fault=RunStopped),
        weigh=named("weigh", guard.weigh, Real, fault=RunStopped),
        releases=named("releases", releases, tuple),
    )


def _checked(found: Any, *types: type) -> Any:
    if isinstance(found, types):
        return found
    got = "nothing" if found is None else brief(found)
    raise TypeError(f"it returned {got}, no {' or '.join(each.__name__ for each in types)}")
