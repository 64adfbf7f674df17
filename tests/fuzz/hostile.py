"""Requests of a hostile server to one node, in this process, and what they made the node do.

``python -m tests.fuzz.hostile --requests 10000 --seed 0`` prints counts and the largest numbers; it
exits with 1 if a request went beyond the site's policy.
"""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import torch

from engram.client.app import answer_question
from engram.cohort.trainer.sampler import Sampler
from engram.core.slots import flat
from engram.link.records import from_contents, to_parts
from engram.settings.errors import REFUSED, EngramError, brief
from engram.settings.families import METHODS
from engram.sites.audit import AUDIT, Audit
from engram.wire.messages import EVALUATE, TRAIN, Content, NodeContext, Question
from engram.wire.wire import CONFIG, DIVERGED, ROSTER_QUERY
from tests.fuzz.counts import Measured, main
from tests.fuzz.folders import small as quick
from tests.fuzz.settings import setting
from tests.fuzz.spoil import VALUES, value
from tests.support import initial_model, small, trainer

STEPS: Final = 20
POLICY: Final = f"""
methods = ["fed*", "local*", "ditto", "apfl"]
datasets = ["digits", "npz:{{open}}/*"]
steps = {STEPS}
model-mib = 1
mib = 2
least-rows = 3
rounds-a-day = 5000
privacy = ["none", "local"]
"""

_KINDS: Final = (ROSTER_QUERY, TRAIN, TRAIN, EVALUATE)
_FIT: Final = ("fedavg", "fedprox", "fedper", "fedbabu", "local", "local-moml", "ditto", "fedem")
_WORK: Final = ("local-steps", "local-epochs", "batch-size", "adapt-steps", "hidden", "num-clients")
_HUGE: Final = (20, 21, 100, 10**4, 10**5, 10**6, "1048576", "4096,4096", "1048576,1048576")


class Seen(Measured):
    """Counts of a node's answers, the most steps that it trained, and files that it opened.

    Memory is for rows, a model of 1 MiB, a training budget of 64 MiB, and libraries.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.opened: set[str] = set()

    def __str__(self) -> str:
        most = f"at most {self.steps} steps of {STEPS}, {len(self.opened)} files opened"
        return f"{super().__str__()}, {most}"


def attack(here: Path, requests: int, seed: int) -> Seen:
    """Sends a node so many requests, and returns what they made it do.

    ``site`` in the empty folder is the node's, and nothing else may be read.
    """
    seen, site = Seen(), here / "site"
    _prepare(here)
    node = {"partition-id": 0, "num-partitions": 1, "state": str(site), "policy": str(site)}
    node |= {"memory-budget": 1 / 16}
    with _watched(seen, here):
        for number in range(-20, requests):  # the first ones load what all need
            rng = random.Random(f"{seed}/{number}")
            if number == 0:
                seen.begin()
            _ask(rng, here, node, seen, whole=number < 0)
    seen.end()
    if fault := Audit(site / AUDIT).read().fault:
        seen.wrong.append(fault)
    return seen


def _prepare(here: Path) -> None:
    rows: dict[str, Any] = {"x": np.ones((40, 4), np.float32), "y": np.arange(40) % 2}
    for folder in ("site/open", "secret"):
        (here / folder).mkdir(parents=True)
        np.savez(here / folder / "rows.npz", **rows)
    (here / "site" / "open" / "link.npz").symlink_to(here / "secret" / "rows.npz")
    (here / "site" / "policy.toml").write_text(POLICY.format(open=here / "site" / "open"))


def _ask(rng: random.Random, here: Path, node: dict[str, Any], seen: Seen, *, whole: bool) -> None:
    method = rng.choice(_FIT if whole or rng.random() < 0.6 else list(METHODS))
    fits = method in _FIT
    config: dict[str, Any]
    config = dict(small(method=method).to_config()) if fits else {"method": method}
    config |= {"local-steps": rng.choice((2, STEPS))} if fits else quick(method)
    kind = rng.choice(_KINDS)
    content = (
        _content(rng, method if fits else _FIT[0], whole=whole) if kind != ROSTER_QUERY else {}
    )
    for _ in range(0 if whole else rng.choice((0, 0, 1, 1, 2, 4))):
        config |= dict([_other(rng, here, method)])
    question = Question(7, kind, content)
    number = rng.choice((1, 2, 3, 2**40))
    try:
        reply = answer_question(question, NodeContext(number, node, config))
    except Exception as error:  # the worker makes it a reply; a site must not be told less
        seen.answers["raised"] += 1
        seen.wrong.append(f"{kind} {_brief(config)}: {type(error).__name__}: {error}")
        return
    if reply.error:
        reason = str(reply.error.reason)
        policy = "policy" if "this site's policy" in reason else "refused"
        seen.answers[policy if reply.error.code == REFUSED else f"code {reply.error.code}"] += 1
        if reply.error.code not in (REFUSED, DIVERGED) or "\n" in reason or len(reason) > 2100:
            seen.wrong.append(f"{kind} {_brief(config)}: {reply.error}")
    else:
        seen.answers[f"done {kind}"] += 1


def _other(rng: random.Random, here: Path, method: str) -> tuple[str, Any]:
    """Returns a setting of a server that wants more than it may have."""
    what = rng.randrange(4)
    if what == 0:
        return rng.choice(_WORK), rng.choice(_HUGE)
    if what == 1:
        place = rng.choice(("secret/rows", "site/open/link", "site/open/../../secret/rows"))
        others = ("npz:/etc/passwd", "csv:/etc/passwd", "npz:/dev/zero", "hf:x", "images:/etc", "x")
        mine = f"npz:{here}/site/open/rows.npz"
        return "dataset", rng.choice((f"npz:{here}/{place}.npz", mine, *others))
    if what == 2:
        return setting(rng, method)
    return rng.choice(list(small(method="fedavg").to_config())), value(rng)


def _content(rng: random.Random, method: str, *, whole: bool) -> Content:
    training = f"{_FIT.index(method):016x}"
    asked: dict[str, Any] = {"server-round": 1, "training": training, "clients": [0]}
    model = dict(flat(_model(method)))
    if not whole:
        for _ in range(rng.choice((0, 0, 1, 2))):
            key = rng.choice(("server-round", "training", "clients", "durable", "most-examples"))
            asked[key] = rng.choice(
                (*VALUES, [0, 1], [0] * rng.choice((2, 9)), [10**6], list(range(1000)), "../x")
            )
        if rng.random() < 0.3:
            shape = rng.choice(((1,), (1000, 1000), (0, 5), (300, 300)))
            model[rng.choice([*model, "x"])] = torch.full(shape, rng.choice((0.0, 1e38, np.nan)))
    record = {key: held for key, held in asked.items() if _is_sent(held)}
    return {"arrays": model, CONFIG: record}


def _is_sent(held: Any) -> bool:
    """Whether a message can have a value."""
    try:
        sent = b"".join(to_parts({CONFIG: {"x": held}}))
        return bool(from_contents([sent], 2**20))
    except (TypeError, ValueError, EngramError):
        return False


@cache
def _model(method: str) -> Any:
    return initial_model(trainer(small(method=method)))


def _brief(config: dict[str, Any]) -> str:
    usual = small(method="fedavg").to_config()
    return brief({k: v for k, v in config.items() if usual.get(k) != v})


@contextmanager
def _watched(seen: Seen, here: Path) -> Iterator[None]:
    """Counts the steps for which rows are drawn, and notes files that the node opens."""
    watching, drawn = [True], Sampler.draw
    outside = ("/etc/passwd", "/dev/zero", str(here / "secret"))

    def note(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and watching and isinstance(args[0], str):
            path = str(Path(args[0]).resolve())
            seen.opened.add(path)
            if path.startswith(outside):
                seen.wrong.append(f"{path} was opened")

    def draw(sampler: Sampler, *args: Any) -> Any:
        found = drawn(sampler, *args)
        steps = (found.rows.shape[1] - found.initial) // (found.batches * found.size)
        if len({*args[0]}) < len(args[0]):
            seen.wrong.append(f"rows were drawn for clients {args[0]}")
        seen.steps = max(seen.steps, steps)
        if steps > STEPS:
            seen.wrong.append(f"{steps} steps were drawn")
        return found

    sys.addaudithook(note)  # for good: it only looks while it is watching
    try:
        with patch.object(Sampler, "draw", draw):
            yield
    finally:
        watching.clear()


if __name__ == "__main__":
    sys.exit(main("tests.fuzz.hostile", __doc__, "requests", 10_000, attack))
