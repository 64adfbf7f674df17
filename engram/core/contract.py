"""The contract of a method: in every function of a round, its slots are those it declares."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from torch import Tensor

from engram.core.method import Kind, Method, Served, Slots
from engram.core.rounds import first_steps
from engram.core.settings import METHODS
from engram.core.slots import flat
from engram.core.types import Batch, Params


class SlotFault(ValueError):
    """An error of a method: slots or phases that break its contract.

    Attributes:
        expected: The faulty thing, and the requirement on it.
        got: Its actual names, shape or type.
    """

    def __init__(self, where: str, what: str, expected: str, got: str) -> None:
        super().__init__(f"{where}: {what} must be {expected}, got {got}")
        self.expected, self.got = f"{what} of {where} to be {expected}", got


class Contract(NamedTuple):
    """Checks of a method on its network."""

    name: str
    method: Method
    initial: Params

    def check_phases(self, steps: int) -> None:
        """Checks that each phase has a step, in a round of so many steps.

        Raises:
            SlotFault: There is no phase, or one without a step.
        """
        where, phases = f"method {self.name}", self.method.client.phases
        if not phases:
            raise SlotFault(where, "phases", "one or more", "none")
        fractions = [phase.fraction for phase in phases]
        starts = [*first_steps(phases, steps), steps] if all(f > 0 for f in fractions) else []
        if len({*starts}) <= len(phases):
            expected = f"positive, and leave each phase some of {steps} steps"
            raise SlotFault(where, "fractions of phases", expected, str(fractions))

    def round(
        self,
        client: object,
        received: Slots,
        kept: Slots,
        initial_batch: Batch | None,
        batches: Mapping[int, Sequence[Batch]],
    ) -> tuple[Slots, Slots, Slots, Served]:
        """Runs a client's round of one step per phase, without moving parameters, and checks it.

        Args:
            client: The client's name or number, for messages.
            received: Slots that it receives.
            kept: Slots that it keeps from former rounds.
            initial_batch: The batch for ``Client.begin``, or None.
            batches: Batches of each phase's step, by the phase's index; phases without an entry
                are skipped.

        Returns:
            The slots that it works on, sends and keeps, and the models that serve it.

        Raises:
            SlotFault: The method breaks its contract.
        """
        where = f"method {self.name}, client {client}"
        side, serve = self.method.client, self.method.serve
        self._declared(where, "received", received)
        work = side.begin(received, kept, initial_batch)
        self._declared(where, "that begin returns", work)
        for number, taken in batches.items():
            directions, after = side.phases[number].direction(work, tuple(taken))
            _same(where, f"that phase {number} returns", after, work)
            if not directions.keys() <= work.keys():
                expected = f"among those that it works on, {_names(work)}"
                what = f"slots that phase {number} moves"
                raise SlotFault(where, what, expected, _names(directions))
            for slot, d in directions.items():
                what = f"direction of phase {number} for slot {slot!r}"
                _inside(where, what, d, work[slot], "the slot")
            work = after
        sent, after = side.end(received, work)
        self._sent(where, received, sent)
        self._kept(where, after)
        served = serve(received, after, True)
        self._served(where, served)
        self._served(where, serve(received, side.start, False))
        return work, sent, after, served

    def _declared(self, where: str, what: str, slots: Slots) -> None:
        kinds = self.method.kinds
        if any(kinds.get(slot) not in get_args(Kind) for slot in slots):
            expected = f"among those whose kinds are declared, {_names(kinds)}"
            raise SlotFault(where, f"slots {what}", expected, _names(slots))

    def _sent(self, where: str, received: Slots, sent: Slots) -> None:
        declared = self.method.client.sends
        if sent.keys() != declared:
            expected = f"those that Client.sends declares, {_names(declared)}"
            raise SlotFault(where, "slots that leave", expected, _names(sent))
        self._declared(where, "that leave", sent)
        claims = self.method.claims
        sums = [path for path, claim in claims.items() if claim == "sums"]
        shares = [f"{path.removesuffix('sums')}shares" for path in sums]
        if missing := [path for path in (*claims, *shares) if path not in flat(sent)]:
            expected = f"among the arrays that leave, {_names(flat(sent))}"
            raise SlotFault(where, "claims", expected, _names(missing))
        for slot, x in sent.items():
            if self.method.kinds[slot] == "model":
                what = f"slot {slot!r} that leaves"
                if slot not in received:  # its change could not be bounded
                    expected = "one of those received, since it is a model"
                    raise SlotFault(where, what, expected, f"{_names(received)} received")
                _inside(where, what, x, received[slot], "the received slot")

    def _kept(self, where: str, kept: Slots) -> None:
        self._declared(where, "that are kept", kept)
        for slot, x in kept.items():
            what, like = f"slot {slot!r} that is kept", self.method.client.start.get(slot)
            if like is not None:
                _inside(where, what, x, like, "Client.start")
            elif self.method.kinds[slot] != "statistic":
                _inside(where, what, x, self.initial, "the network")

    def _served(self, where: str, served: Served) -> None:
        if not isinstance(served, Served) or not served.models:
            got = type(served).__name__
            raise SlotFault(where, "what serve returns", "Served with one model, or several", got)
        for i, model in enumerate(served.models):
            _inside(where, f"served model {i}", model, self.initial, "the network", whole=True)
        wanted = (len(served.models),)
        if served.weights is not None and served.weights.shape != wanted:
            got = f"shape {tuple(served.weights.shape)}"
            raise SlotFault(where, "Served.weights", f"of shape {wanted}", got)


def cause_of(name: str, error: BaseException) -> str:
    """Returns an error's first sentence, with its line in the method's file."""
    return f"{type(error).__name__}: {error}".partition(". ")[0] + line_of(name, error)


def line_of(name: str, error: BaseException | None) -> str:
    """Returns the line of a method's file that raised an error; "" if none of it did."""
    build = getattr(METHODS.get(name), "build", None)
    if error is None or build is None:
        return ""
    file, line, place = build.__code__.co_filename, "", error.__traceback__
    while place is not None:
        code = place.tb_frame.f_code
        if code.co_filename == file:
            line = f" ({Path(file).name}, line {place.tb_lineno}, in {code.co_name})"
        place = place.tb_next
    return line


def check_merged(name: str, before: Slots, after: Slots) -> None:
    """Checks that a merge returns the same slots, in the same shapes, as it was given.

    Raises:
        SlotFault: It returns others.
    """
    _same(f"method {name}, server", "that merge returns", after, before)


def difference(x: Any, like: Any, *, whole: bool = False) -> str:
    """Describes how a slot differs from another, with all of its names if ``whole``, or ""."""
    if isinstance(x, Tensor) or isinstance(like, Tensor):
        one, other = _shape(x), _shape(like)
        return "" if one == other else f"{one} in place of {other}"
    if not isinstance(x, dict):
        return f"{type(x).__name__} in place of parameters"
    for name, leaf in x.items():
        if name not in like:
            return f"{name!r}, which is not there"
        if _shape(leaf) != _shape(like[name]):
            return f"{name!r} of {_shape(leaf)} in place of {_shape(like[name])}"
    missing = [name for name in like if name not in x] if whole else []
    return f"none called {missing[0]!r}" if missing else ""


def _shape(x: Any) -> str:
    return f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else "parameters"


def _inside(where: str, what: str, x: Any, like: Any, whose: str, *, whole: bool = False) -> None:
    if got := difference(x, like, whole=whole):
        raise SlotFault(where, what, f"of the names and shapes of {whose}", got)


def _same(where: str, what: str, found: Slots, before: Slots) -> None:
    if not isinstance(found, dict) or found.keys() != before.keys():
        got = _names(found) if isinstance(found, dict) else type(found).__name__
        raise SlotFault(where, f"slots {what}", f"the same as before, {_names(before)}", got)
    for slot, x in found.items():
        _inside(where, f"slot {slot!r} {what}", x, before[slot], "the slot before", whole=True)


def _names(slots: Iterable[str]) -> str:
    return ", ".join(sorted(slots)) or "none"
