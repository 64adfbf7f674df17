"""A method's functions with gradients from a training loop that is not Engram's.

A method's functions are pure. So a function that asks for a gradient is stopped there, and run
again from its start once the loop has taken the gradient: without threads, for every method alike.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from engram.core.method import Context, Objective, Slots
from engram.core.personal_parameters import build
from engram.core.slots import over_slots, pick, zeros
from engram.core.types import Params
from engram.settings.errors import Refused

_ROWS: Final = "the rows of a batch"
_TERMS: Final = "derivatives of a loss with further terms"
OUTPUTS: Final = (_ROWS, _TERMS)
"""Needs of a method that a loss of outputs and targets meets."""


class Asked(Exception):
    """A gradient that a method asks for.

    Attributes:
        point: The network's arrays at which it is taken.
        batch: The token of its batch.
    """

    def __init__(self, point: Params, batch: object) -> None:
        super().__init__()
        self.point, self.batch = point, batch


class Lacking(Exception):
    """A method asks for more than gradients: a Hessian product, a loss at other models."""


class Token:
    """A batch of a user's loop, with rows that a method does not see."""

    def _rows(self, *_: Any) -> Any:
        raise Lacking(_ROWS)

    __getitem__ = __iter__ = __len__ = _rows


def _lacking(what: str) -> Callable[..., Any]:
    def asked(*_: Any, **__: Any) -> Any:
        raise Lacking(what)

    return asked


class Replay(TorchFunctionMode):
    """The objective of a method with gradients from outside.

    A function that is run again takes the results of its operations so far from the run before.

    Attributes:
        objective: The objective for ``Context``.
        asked: The gradient at which a function last stopped.
        answers: The gradients that the function at hand has so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Params] = []
        self._results: list[Any] = []
        self._at = self._past = 0  # answers and operations of this run so far
        self.asked: Asked
        losses, products = _lacking("losses at several models"), _lacking("Hessian products")
        derivative = _lacking(_TERMS)
        self.objective = Objective(
            losses, self._gradient, products, losses, lambda *_, **__: derivative
        )

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Runs a function as far as the answers go; returns None if it asks for one more."""
        self._at = self._past = 0
        whole = bool(self.answers and not self._results)  # known beforehand: it is run once
        try:
            with nullcontext() if whole else self:
                result = function(*args)
        except Asked as asked:
            self.asked = asked
            return None
        except Lacking:
            self.answers, self._results = [], []
            raise
        self.answers, self._results = [], []
        return result

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Returns an operation's result, that of the run before if there is one."""
        if self._past == len(self._results):
            self._results.append(func(*args, **(kwargs or {})))
        self._past += 1
        return self._results[self._past - 1]

    def _gradient(self, w: Params, batch: Any, names: Any = None) -> Params:
        if self._at == len(self.answers):
            raise Asked(w, batch)
        gradient = self.answers[self._at]
        self._at += 1
        return gradient if names is None else pick(gradient, names)


class Traits(NamedTuple):
    """A method's use of the loss in local steps, found by running them on zeros.

    Attributes:
        lacks: What it asks for beside gradients; "" if nothing.
        begins: Likewise, before the first step.
        gradients: Gradients of a step, at most.
        again: Gradients of the same batch, at most.
        points: Of each phase, the slots at which its gradients are taken, with their batches'
            indices; none if a point is not known before another gradient.
        plain: The slot that plain training moves; "" if a step is something else.
        phases: Number of phases.
    """

    lacks: str
    begins: str
    gradients: int
    again: int
    points: tuple[tuple[tuple[str, int], ...], ...]
    plain: str
    phases: int

    @property
    def level(self) -> str:
        """The need of a client's code: ``any``, ``steps``, ``batches`` or ``train``."""
        if self.lacks:
            return "train"
        if self.again > 1:
            return "batches"
        return "any" if self.plain else "steps"


def traits_of(settings: Any, context: Context, received: Slots, kept: Slots) -> Traits:
    """Returns the traits of a method, by its functions alone."""
    replay = Replay()
    method = build(settings, context._replace(objective=replay.objective))
    client, begins, lacks, most, again, plain = method.client, "", "", 0, 1, set[str]()
    points: list[tuple[tuple[str, int], ...]] = []
    try:
        token = Token() if client.initial_rows else None
        work, _ = _answered(replay, lambda: client.begin(received, kept, token))
    except Lacking as error:
        begins, work = str(error), _begun(settings, context, received, kept)
    work = over_slots(torch.zeros_like, work)  # no two slots have the same arrays
    for phase in client.phases:
        tokens = tuple(Token() for _ in range(phase.batches))
        try:
            step, calls = _answered(replay, partial(phase.direction, work, tokens))
            directions, after = step
        except Lacking as error:
            lacks = str(error)
            continue
        batches = [tokens.index(asked.batch) for asked, _ in calls]
        at = [next((s for s in work if _at(asked, work[s])), "") for asked, _ in calls]
        points.append(tuple(zip(at, batches, strict=True)) if all(at) else ())
        most, again = max(most, len(calls)), max(again, *map(batches.count, batches))
        same = all(_alike(after[s], x) for s, x in work.items())
        (asked, answer), *more = calls
        moved = [s for s, d in directions.items() if _alike(d, answer) and _at(asked, work[s])]
        plain.add(moved[0] if same and not more and len(moved) == len(directions) == 1 else "")
    only = plain.pop() if len(plain) == len(client.phases) == 1 else ""
    return Traits(lacks, begins, most, again, tuple(points), only, len(client.phases))


def _answered(replay: Replay, function: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """Runs a function with zeros for gradients; returns its result, and its questions."""
    calls: list[Any] = []
    while (result := replay.run(function)) is None:
        calls.append((replay.asked, zeros(replay.asked.point)))
        replay.answers.append(calls[-1][1])
    return result, calls


def _begun(settings: Any, context: Context, received: Slots, kept: Slots) -> Slots:
    """Returns the work of a ``begin`` that asks for losses, with zeros for them."""
    nothing = Replay().objective._replace(
        loss=lambda w, batch: torch.zeros(()), gradient=lambda w, batch, names=None: zeros(w)
    )
    method = build(settings, context._replace(objective=nothing))
    return method.client.begin(received, kept, Token())


def _alike(x: Any, y: Any) -> bool:
    if isinstance(x, Tensor) or isinstance(y, Tensor):
        return x is y
    return x.keys() == y.keys() and all(leaf is y[n] for n, leaf in x.items())


def _at(asked: Asked, x: Any) -> bool:
    return isinstance(x, dict) and _alike(asked.point, x)


def refusal(name: str, lacks: str) -> Refused:
    """Returns the error of a method that no loop of a user's can drive."""
    given = "criterion=..." if lacks in OUTPUTS else "loss"
    words = f"call session.train(batches, {given}) in place of your loop"
    return Refused(f"{name} needs {lacks}: {words}")
