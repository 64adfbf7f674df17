"""Cases with corrupted messages: rosters, replies, contents, estimates, and whole rounds."""

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from engram.bandits.federation.meta_ban_messages import read_arms, read_predictions
from engram.client.hosts import Opening, host_of
from engram.client.memory import RamStore
from engram.client.requests import Request
from engram.data.schema.columns import Kind
from engram.link.records import from_contents, to_contents
from engram.server.run import run as run_on
from engram.simulations.grid import InProcessGrid
from engram.tables.federation.molar_messages import (
    SharedEstimate,
    parameters_record,
    read_parameters,
    read_shared,
    read_sites,
    shared_record,
    site_record,
)
from engram.tables.shrinkage import Shared
from engram.tables.site import SiteEstimate
from engram.wire.messages import Content, Entries, Reply
from engram.wire.roster import describe_node, read_entry
from engram.wire.wire import arrays_of, floats_record
from tests.fuzz.folders import quick_experiment
from tests.fuzz.spoil import HUGE, VALUES, spoil_bytes

_PLAIN: Final = tuple(
    v for v in VALUES if isinstance(v, bool | float | str | bytes) or type(v) is int
)
_LISTS: Final[tuple[Any, ...]] = (
    *([], [0], [1, 1], [-1], [2**63 - 1], [0.5], ["x"], [float("nan")], [float("inf")]),
    list(range(5000)),
)


def spoil_content(rng: random.Random, content: Content) -> Content:
    """Returns a corrupted copy of a message's content."""
    spoilt = dict(content)
    if not spoilt:
        return spoilt
    name = rng.choice(list(spoilt))
    record, what = spoilt[name], rng.randrange(8)
    if what == 0:
        del spoilt[name]
    elif what == 1:
        spoilt[rng.choice(("arrays", "clients", "metrics", "roster", "é", ""))] = spoilt.pop(name)
    elif any(isinstance(value, torch.Tensor) for value in record.values()):
        spoilt[name] = _other_arrays(rng, record)
    else:
        kept = {key: held for key, held in record.items() if what != 2 or rng.random() < 0.7}
        if kept or what == 3:
            kept[rng.choice([*kept, "x"])] = rng.choice(rng.choice((_PLAIN, _LISTS, HUGE[:6])))
        spoilt[name] = kept
    return spoilt


def _other_arrays(rng: random.Random, record: Entries) -> Entries:
    if not (found := dict(record)):
        return found
    name = rng.choice(list(found))
    old, what = found[name], rng.randrange(4)
    if what == 0:
        del found[name]
    elif what == 1:
        found[rng.choice(("x", "", "coef"))] = found.pop(name)
    elif what == 2:
        value = rng.choice((torch.nan, torch.inf, -1.0, 1e308, 0.0))
        found[name] = torch.full(old.shape, value, dtype=torch.float64)
    else:
        dtype = rng.choice((torch.float32, torch.float64, torch.int64, torch.float16))
        found[name] = torch.zeros(rng.choice(((), (0,), (3,), (2, 3))), dtype=dtype)
    return found


def _documented(read: Callable[[], object], *errors: type[Exception]) -> None:
    """Calls a reader that is documented to raise these errors."""
    try:
        read()
    except errors:
        return


def rosters(rng: random.Random, here: Path) -> None:
    """Nodes' answers to the roster query."""
    del here
    content = describe_node({0: 5, 3: 7}, Kind("float32[1,8,8]", 10, ("a", "b")), {3: "park"})
    for _ in range(rng.choice((1, 1, 2))):
        content = spoil_content(rng, content)
    _documented(lambda: read_entry(content), KeyError, TypeError, ValueError)


def contents(rng: random.Random, here: Path) -> None:
    """A message's records as bytes."""
    del here
    size = rng.choice((3, 400_000))
    content: Content = {"arrays": {"w": torch.ones(size)}, "config": {"a": 1}}
    sent = [spoil_bytes(rng, b"".join(each.parts)) for each in to_contents(content)]
    from_contents(sent, math.inf)


def estimates(rng: random.Random, here: Path) -> None:
    """Estimates and predictions, as arrays."""
    del here
    site = SiteEstimate(np.ones(3), np.ones(3), 20.0, 1.0, 17.0)
    shared = Shared(np.ones(3), 20.0)
    kinds: Sequence[tuple[Entries, Callable[[Entries], object]]] = (
        (site_record([site, site], 3), lambda r: read_sites(r, 2, 3)),
        (shared_record(SharedEstimate(shared, np.ones(3))), lambda r: read_shared(r, 3)),
        (parameters_record([shared, None], 3), lambda r: read_parameters(r, 2)),
        (floats_record(arms=np.ones((4, 3))), lambda r: read_arms(r, 3)),
        (floats_record(predictions=np.ones((2, 4))), lambda r: read_predictions(r, (2, 4))),
    )
    record, read = rng.choice(kinds)
    spoilt = record
    for _ in range(rng.choice((1, 1, 2))):
        spoilt = _other_arrays(rng, spoilt)
    _documented(lambda: read(arrays_of({"r": spoilt}, "r")), KeyError, TypeError, ValueError)


class _Spoiling(InProcessGrid):
    """Nodes some of whose replies are corrupted."""

    def __init__(self, rng: random.Random, host: Any, hosts: Sequence[Sequence[int]]) -> None:
        super().__init__(host, hosts)
        self._rng = rng
        self._share = rng.choice((0.05, 0.3))

    def _answer(self, kind: str, requests: Sequence[Request]) -> list[Reply]:
        replies = super()._answer(kind, requests)
        for reply in replies:
            if not reply.error and self._rng.random() < self._share:
                for _ in range(self._rng.choice((1, 1, 3))):
                    reply.content = spoil_content(self._rng, reply.content)
        return replies


def rounds(rng: random.Random, here: Path) -> None:
    """Runs with corrupted replies, which finish or say why they stop."""
    method = rng.choice(("fedavg", "pfedme", "molar", "molar-bandit", "meta-ban"))
    e = quick_experiment(method)
    tables = e.own.plug_in != "local"
    changes = {"timeout": 0.2} | ({} if tables else {"merge": rng.choice(("mean", "median"))})
    e = e.from_config(e.to_config() | changes)
    nodes = [[client] for client in range(4)] if rng.random() < 0.7 else [[0, 1], [2, 3]]
    store = RamStore()
    grid = _Spoiling(rng, host_of(Opening(e, store)), nodes)
    run_on(grid, e, here / "run", engine="vectorized", memories=store)
