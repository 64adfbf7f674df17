"""Replies of hostile sites to a server's screening, in this process, and what came of them.

``python -m tests.fuzz.replies --replies 100000 --seed 0`` prints counts and the growth of memory;
it exits with 1 if a reply was accepted that should not have been, or kept others from counting.
"""

import logging
import math
import random
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from engram.guards.noise import secret_noise
from engram.link.records import from_contents, to_parts
from engram.server.roster import query_roster
from engram.settings.errors import Refused
from engram.strategies.running.base import STRATEGIES
from engram.wire.messages import Content, Entries, Question, Reply
from tests.fuzz.counts import Measured, main
from tests.fuzz.messages import spoil_content
from tests.fuzz.spoil import spoil_bytes
from tests.replies.federations import SITES, federations, grid_of, settings_of
from tests.replies.fields import fields_of, others, spoiled

LIARS: Final = (0, 2, 3, 5, 6, 7, 8)  # 3 of 10 sites are well, and as many are needed
FAMILIES: Final = ("classes", "targets", "tables", "adaptive")
_FREE: Final = ("losses", "train-loss", "way", "reasons", "noted", "notes", "examples")
"""Entries that a site may choose: rows that count are the roster's, and losses are capped."""

_OPEN: Final = ("scale", "sigma", "freedom")
"""Entries of a table's estimates that are infinite where rows do not determine them."""


class Stage(NamedTuple):
    """A round's messages, the honest replies to them, and the strategy that merges these."""

    name: str
    strategy: Any
    asked: list[Question]
    honest: list[Content]
    trains: bool


def attack(here: Path, replies: int, seed: int) -> Measured:
    """Has so many hostile replies screened at least, and returns what became of them."""
    given = federations(here)
    stages = [stage for family in FAMILIES for stage in _stages(family, given[family])]
    seen, number = Measured(), -len(stages)
    while seen.answers.total() < replies:
        if number == 0:  # each stage has loaded what it needs
            seen.begin()
        _round(random.Random(f"{seed}/{number}"), stages[number % len(stages)], seen)
        number += 1
    seen.end()
    return seen


def _stages(name: str, settings: dict[str, Any]) -> list[Stage]:
    e = settings_of(**settings)
    grid = grid_of(e, lambda kind, client, content: content)
    roster, found = query_roster(grid, e.num_clients), []
    for trains in (True, False):
        strategy: Any = STRATEGIES[e.own.plug_in].build(e, roster, secret_noise)
        asked = list(strategy.configure_train(1, strategy.init(), {}, grid))
        replies = list(grid.ask(asked, timeout=60))
        if not trains:
            arrays = strategy.aggregate_train(1, replies)[0]
            asked = list(strategy.configure_evaluate(1, arrays, {}, grid))
            replies = list(grid.ask(asked, timeout=60))
        answers = {reply.question: reply.content for reply in replies}
        honest = [answers[question] for question in asked]
        what = f"{name} {'update' if trains else 'scores'}"
        found.append(Stage(what, strategy, asked, honest, trains))
    return found


def _round(rng: random.Random, stage: Stage, seen: Measured) -> None:
    """Has a round's replies screened, most of which are hostile."""
    contents: list[Content | None] = list(stage.honest)
    told: dict[int, str] = {}
    for client in LIARS:
        told[client], contents[client] = _hostile(rng, stage, client)
    sent = [
        Reply(question, content)
        for question, content in zip(stage.asked, contents, strict=True)
        if content is not None
    ]
    rng.shuffle(sent)
    try:
        numbers = _merged(stage, sent)
    except Exception as error:
        seen.wrong.append(f"{stage.name} {told}: ended by {error!r}")
        return
    if not all(np.isfinite(array).all() for array in numbers if array.dtype.kind == "f"):
        seen.wrong.append(f"{stage.name} {told}: the result is not finite")
    for client, content in enumerate(contents):
        left_out = client in stage.strategy.left_out
        if client in told:
            seen.answers[_outcome(stage, content, left_out=left_out)] += 1
            if content is not None and stage.trains and not left_out:
                fault = _fault(content, stage.honest[client])
                if fault:
                    seen.wrong.append(f"{stage.name} {told[client]}: merged, though {fault}")
        elif stage.trains and left_out:
            seen.wrong.append(f"{stage.name} {told}: client {client} is left out for others")


def _outcome(stage: Stage, content: Content | None, *, left_out: bool) -> str:
    if content is None:
        return "unreadable"
    if not stage.trains:
        return "scores read"
    return "update left out" if left_out else "update merged"


def _merged(stage: Stage, sent: list[Reply]) -> list[Any]:
    """Returns the numbers that a strategy makes of a round's replies."""
    if stage.trains:
        arrays, _ = stage.strategy.aggregate_train(1, sent)
        # A table's intervals, and limits of what it tells, are infinite where few sites are left.
        limits = ("half-width", "told-numbers")
        found = {name: array.numpy() for name, array in arrays.items()}
        return [np.where(a == np.inf, 0, a) if n in limits else a for n, a in found.items()]
    found = stage.strategy.aggregate_evaluate(1, sent)
    return [np.array([value for value in found.values() if isinstance(value, int | float)])]


def _hostile(rng: random.Random, stage: Stage, client: int) -> tuple[str, Content | None]:
    """Returns what a reply is like, and its content; None if the server cannot read it."""
    honest, what = stage.honest[client], rng.randrange(8)
    if what < 3:
        fields = fields_of(honest)
        field = rng.choice(list(fields))
        how = rng.choice(list(others(fields[field])))
        return f"{field} {how}", _sent(spoiled(honest, field, how))
    if what < 5:
        content = honest
        for _ in range(rng.choice((1, 1, 2, 3))):
            content = spoil_content(rng, content)
        return "spoilt", _sent(content)
    if what == 5:
        return "torn", _sent(honest, partial(spoil_bytes, rng))
    if what == 6:
        other = rng.choice([c for c in range(SITES) if c != client])
        return f"that of client {other}", stage.honest[other]
    return _large(rng, honest)


def _sent(content: Content, way: Callable[[bytes], bytes] = lambda data: data) -> Content | None:
    """Returns content as it comes over a link; None if that cannot read it."""
    try:
        data = b"".join(to_parts(content))
    except (EOFError, TypeError, ValueError):  # what Flower alone sends
        return content
    try:
        return from_contents([way(data)], math.inf)
    except Refused:
        return None


def _large(rng: random.Random, honest: Content) -> tuple[str, Content]:
    """Returns a reply with something that is large, or says that it is."""
    kinds: dict[str, Any] = {name: type(record) for name, record in honest.items()}
    content = {name: kinds[name](dict(record)) for name, record in honest.items()}
    how = rng.choice((_text, _list, _names, _records))
    how(rng, content)
    return how.__doc__ or "", content


@cache
def _once(make: Callable[[], Content]) -> Content:
    """Returns large records as they come over a network; making them is what takes longest."""
    found = _sent(make())
    assert found is not None
    return found


def _lists() -> Content:
    long: dict[str, Any] = {"0": [0] * 10**5, "x": ["x"] * 10**4, "0.0": [0.0] * 10**5}
    return {"long": long}


def _metrics() -> Content:
    metrics = {f"{i}-{'accuracy' * 10}\n\x1b[2J": i / 2000 for i in range(2000)}
    return {"metrics": {**metrics}}


def _many() -> Content:
    return {f"record {i}": {"x" * 100: i / 300} for i in range(300)}


def _values(content: Content) -> list[Entries]:
    """Records without tensors: those with tensors have nothing else."""
    each = content.values()
    return [one for one in each if not any(isinstance(x, torch.Tensor) for x in one.values())]


def _text(rng: random.Random, content: Content) -> None:
    """A text of a megabyte."""
    for record in _values(content):
        record[rng.choice([*record, "x"])] = "é" * 2**19


def _list(rng: random.Random, content: Content) -> None:
    """A long list."""
    long = list(_once(_lists)["long"].values())
    for record in _values(content):
        record[rng.choice([*record, "x"])] = rng.choice(long)


def _names(rng: random.Random, content: Content) -> None:
    """Metrics of many names."""
    del rng
    content["metrics"] = _once(_metrics)["metrics"]


def _records(rng: random.Random, content: Content) -> None:
    """Many records."""
    del rng
    for name, record in _once(_many).items():
        content[name] = record


def _fault(content: Content, honest: Content) -> str:
    """Returns why an update must not be merged, in independent words; "" if it may."""
    for name, record in honest.items():
        if name == "metrics" and "sites" in honest:  # of tables, rows are the roster's alone
            continue
        theirs: Any = content.get(name)
        if theirs is None:
            return f"{name} is missing"
        tensors = all(isinstance(value, torch.Tensor) for value in record.values())
        if record and tensors and set(theirs) != set(record):
            return f"{name} has other arrays"
        values: dict[str, Any] = dict(record)
        given: dict[str, Any] = dict(theirs)
        for key, value in values.items():
            if isinstance(value, torch.Tensor):
                mine, other = value.numpy(), given[key].numpy()
                if (mine.shape, mine.dtype) != (other.shape, other.dtype):
                    return f"{key} has shape {other.shape} and dtype {other.dtype}"
                infinite = key in _OPEN and "sites" in honest
                if not (np.isfinite(other) | (infinite & (other == np.inf))).all():
                    return f"{key} is not finite"
            elif key not in _FREE and theirs.get(key) != value:
                return f"{key} is {theirs.get(key)!r:.80}, and not {value!r:.80}"
    return ""


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    np.seterr(over="ignore")  # in what is made here
    sys.exit(main("tests.fuzz.replies", __doc__, "replies", 100_000, attack))
