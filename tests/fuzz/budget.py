"""Requests of a server that wants all that a site's budget gives, and more, in any order.

``python -m tests.fuzz.budget --requests 5000 --seed 0`` prints counts, and what was spent by a
recount; it exits with 1 if an answer was not paid, or told what has no noise.
"""

import math
import random
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from engram.client import app as module
from engram.client.app import answer_question
from engram.core.slots import flat
from engram.sites import ledger as ledgers
from engram.sites.ledger import LEDGER, Ledger
from engram.wire.messages import EVALUATE, TRAIN, Content, NodeContext, Question, Reply
from engram.wire.wire import (
    ARRAYS,
    CLIENTS,
    COLUMNS,
    CONFIG,
    METRICS,
    MODEL,
    OWN,
    ROSTER_QUERY,
    SECONDS,
    digest,
    read_list,
)
from tests.fuzz.counts import Counts, main
from tests.sites.budgets import DELTA, epsilon_of
from tests.support import initial_model, own_of, small_of_any, trainer

EPSILON: Final = 20.0
_METHODS: Final = ("fedavg", "ditto", "fedper", "scaffold", "local-moml", "fedproto")
_NOISE: Final = (0.001, 1.0, 8.0, 8.0, 30.0, 1000.0, 10_000.0)
_OTHERS: Final = 0.2  # of requests come with other settings, for which a node opens its data anew
_ASKED: Final = ("nonce", "losses", "combine", "most-examples", "durable", "way")


class Found(Counts):
    """Counts of answers, and what was spent by ledger and recount.

    ``costs`` are mu^2 of the ledger's lines, ``released`` those of the answers that came.
    """

    def __init__(self) -> None:
        super().__init__()
        self.costs: list[float] = []
        self.released: list[float] = []
        self.ledgers = 0.0

    def __str__(self) -> str:
        spent = f"epsilon {self.ledgers:.6f} of {EPSILON:g} by the ledger"
        return f"{super().__str__()}; {spent}, {epsilon_of(self.costs):.6f} by a recount"


def attack(here: Path, requests: int, seed: int) -> Found:
    """Sends a node with a total so many requests; its state is in a folder."""
    (here / "policy.toml").write_text(f"epsilon = {EPSILON}\ndelta = {DELTA}\n")
    found, known = Found(), dict[str, list[bytes]]()
    book = Ledger(here / LEDGER, EPSILON, DELTA)
    settings = _settings(random.Random(str(seed)))
    for number in range(requests):
        rng = random.Random(f"{seed}/{number}")
        if rng.random() < 0.1:
            module._node.cache_clear()  # as after a restart
            ledgers._read.clear()
        if rng.random() < _OTHERS:
            settings = _settings(rng)
        kind, content = _request(rng, settings)
        before = len(book.read().lines)
        reply = _ask(here, rng, kind, content, settings)
        added = book.read().lines[before:]
        found.costs += [(2 / settings["noise_multiplier"]) ** 2 for _ in added]
        if len(added) > 1 or any(line["kind"] != kind for line in added):
            found.wrong.append(f"one request has added {added}")
        if reply.error:
            spent = "budget is spent" in str(reply.error.reason)
            found.answers["spent" if spent else "refused"] += 1
            continue
        found.answers[f"done {kind}"] += 1
        _check(found, kind, reply.content, settings)
        if kind != ROSTER_QUERY:
            told = _bytes(reply.content)
            if told in known.get(digest(content), []):
                continue
            if not added:
                found.wrong.append(f"an answer to {kind} was new, and not paid")
            known.setdefault(digest(content), []).append(told)
            releases = max(Counter(_ids(reply.content)).values())
            found.released.append(releases * (2 / settings["noise_multiplier"]) ** 2)
    _recount(found, book)
    return found


def _recount(found: Found, book: Ledger) -> None:
    books = book.read()
    if books.fault:
        found.wrong.append(books.fault)
    total, found.ledgers = sum(books.totals.values()), max(book.spent(books).values(), default=0.0)
    if not math.isclose(total, math.fsum(found.costs), rel_tol=1e-9, abs_tol=1e-12):
        found.wrong.append(f"the ledger has {total}, a recount {math.fsum(found.costs)}")
    if math.fsum(found.released) > total * (1 + 1e-9):
        found.wrong.append(f"the ledger has {total}, and answers cost {math.fsum(found.released)}")
    if not math.isclose(found.ledgers, epsilon_of(found.costs), rel_tol=1e-6):
        found.wrong.append(f"epsilon is {found.ledgers} by the ledger, {epsilon_of(found.costs)}")
    if epsilon_of(found.costs) > EPSILON * (1 + 1e-6):
        found.wrong.append(f"epsilon is {epsilon_of(found.costs)}")


def _settings(rng: random.Random) -> dict[str, Any]:
    privacy = rng.choice(("local",) * 8 + ("none", "central"))
    protected = {"privacy": privacy, "clip": rng.choice((0.1, 0.5, 100.0))}
    return {
        "method": rng.choice(_METHODS),
        "noise_multiplier": rng.choice(_NOISE),
        "seed": rng.choice((0, 0, 1)),
        "eta": rng.choice((0.1, 0.1, 1e30)),
        **(protected if rng.random() < 0.97 else protected | {"metrics": "log-loss"}),
    }


def _request(rng: random.Random, settings: dict[str, Any]) -> tuple[str, Content]:
    kind = rng.choice((TRAIN,) * 4 + (EVALUATE,) * 3 + (ROSTER_QUERY,))
    if kind == ROSTER_QUERY:
        asked: dict[str, Any] = rng.choice(({}, {}, {COLUMNS: True}, {MODEL: "{}"}))
        return kind, {CONFIG: asked}
    values: dict[str, Any] = {
        "server-round": rng.choice((1, 1, 2, 2**40)),
        "training": f"{rng.choice((1, 1, 2)):016x}",
        CLIENTS: rng.choice(
            ([0], [0], [0], [0, 10], [1], [], [0] * rng.randint(2, 50), [10, 0, 10])
        ),
    }
    for key in rng.sample(_ASKED, rng.choice((0, 0, 1, 2))):
        values[key] = rng.choice((0, 1, 2, True, False, "x", 10**6))
    like = {key: value for key, value in settings.items() if key in ("method", "seed")}
    records, own = _slots(tuple(values[CLIENTS]), **like)
    sent: dict[str, Any] = {ARRAYS: records, CONFIG: values}
    return kind, sent | ({OWN: own} if own else {})


@cache
def _slots(clients: tuple[int, ...], **like: Any) -> Any:
    t = trainer(small_of_any(**like))
    return flat(initial_model(t)), flat(own_of(t, [*clients] or [0]))


def _ask(
    here: Path, rng: random.Random, kind: str, content: Content, settings: dict[str, Any]
) -> Reply:
    question = Question(7, kind, content)
    node = {"partition-id": 0, "num-partitions": 10, "state": str(here), "policy": str(here)}
    config = small_of_any(**settings).to_config()
    return answer_question(question, NodeContext(rng.choice((1, 2)), node, config))


def _bytes(content: Content) -> bytes:
    arrays = [array.numpy().tobytes() for array in content.get(ARRAYS, {}).values()]
    return b"".join(arrays) + repr(sorted(content[CLIENTS].items())).encode()


def _ids(content: Content) -> list[int]:
    return read_list(content[CLIENTS], "ids", int)


def _check(found: Found, kind: str, content: Content, settings: dict[str, Any]) -> None:
    """Notes an answer that tells what has no noise."""
    if settings["privacy"] != "local":
        found.wrong.append(f"{kind} was answered under privacy {settings['privacy']}")
    if kind == ROSTER_QUERY:
        return
    details, metrics = content[CLIENTS], content[METRICS]
    if metrics["num-examples"] != len(_ids(content)):
        found.wrong.append(f"a number of rows is told: {metrics}")
    if kind == TRAIN:
        rest = details.get("losses"), details.get("failed"), SECONDS in details
        if rest != ([], [], False) or metrics.keys() != {"num-examples"}:
            found.wrong.append(f"training tells {details} {metrics}")
        return
    for name, values in details.items():
        if "loss" in name and not np.isnan(np.asarray(values, float)).all():
            found.wrong.append(f"{name} is told: {values!r}")


if __name__ == "__main__":
    sys.exit(main("tests.fuzz.budget", __doc__, "requests", 5000, attack))
