"""Entries that leave a node: the manual's lists, against messages of every method."""

import math
import re

import pytest

from engram.client import app as module
from engram.core.slots import flat
from engram.data.federated import model_for
from engram.guards.clip import local_noise
from engram.scoring.score_columns import COMMON, TUNED, ranges_of
from engram.settings.families import METHODS, family
from engram.settings.fingerprint import source_root
from engram.settings.method_for_data import shapes_on
from engram.wire.messages import EVALUATE, TRAIN
from engram.wire.wire import ARRAYS, CLIENTS, CONFIG, METRICS, OWN, ROSTER, ROSTER_QUERY
from tests.samples import EIGHT, sampled
from tests.sites.budgets import LOCAL, ask
from tests.support import initial_model, own_of, small_of_any, trainer

pytestmark = pytest.mark.usefixtures("afresh")

SECTION = (
    (source_root() / "docs" / "privacy.md")
    .read_text(encoding="utf-8")
    .partition("## What leaves a client")[2]
    .partition("\n## ")[0]
)
NETWORK = {"model": "resnet", "norm": "batch", "statistics": "local"}  # of methods of batch norm
KINDS = {"who is there": ROSTER_QUERY, "training": "train", "scores": "evaluate"}


def entries():
    """By kind of message and entry: what is told with local privacy, in words."""
    rows = re.findall(r"^\| ([\w ]+) \| (.+?) \| .+? \| (.+?) \|$", SECTION, flags=re.MULTILINE)
    found = {kind: {} for kind in KINDS.values()}
    for answer, names, private in rows:
        if answer in KINDS:
            for name in re.findall(r"`([\w-]+)`", names) or [names]:
                found[KINDS[answer]][name] = private
    return found


LISTED = entries()


def settings_of(method, **protection):
    network = NETWORK if METHODS[method].personal == "norm" else {}
    return {"method": method, **network, **protection}


def answers(folder, method, nonce="", **protection):
    """A node's answers: by kind, each as one dictionary."""
    settings = settings_of(method, **protection)
    t = trainer(small_of_any(**settings))
    config = {"server-round": 1, "training": "0" * 16, "clients": [0], "nonce": nonce}
    config["combine"] = t.experiment.combines
    records = {ARRAYS: flat(initial_model(t)), CONFIG: config}
    if own := flat(own_of(t, [0])):
        records[OWN] = own
    bare = {"privacy": "none", "clip": 0.0}
    how = {**bare, **settings} if not protection else settings
    found = {}
    for kind in (ROSTER_QUERY, TRAIN, EVALUATE):
        content = {} if kind == ROSTER_QUERY else records
        reply = ask(folder, kind, content, **how)
        assert not reply.error, reply.error
        found[kind] = told(reply.content)
    return found


def told(content):
    """All entries of an answer, the arrays as one."""
    found = content.get(ROSTER, {}) | content.get(CLIENTS, {}) | content.get(METRICS, {})
    if ARRAYS in content:
        assert content.keys() <= {ARRAYS, CLIENTS, METRICS}
        arrays = content[ARRAYS].items()
        found["slots"] = {name: array.numpy().tobytes() for name, array in arrays}
    return found


def listed_as(name, bounded):
    return "bounded metrics" if name in bounded else "other metrics"


@pytest.mark.parametrize("method", sampled(family("local"), EIGHT))
def test_each_method_sends_what_the_manual_lists(tmp_path, method):
    e = small_of_any(**settings_of(method))
    columns = e.network.columns(e, (COMMON, TUNED))
    bounded = {*local_noise(1.0, 1.0).report(ranges_of(columns))}
    scores = {column.name for column in columns}
    (tmp_path / "plain").mkdir()
    (tmp_path / "local").mkdir()
    plain = answers(tmp_path / "plain", method)
    module._node.cache_clear()
    private = answers(tmp_path / "local", method, **LOCAL)
    again = answers(tmp_path / "local", method, nonce="again", **LOCAL)
    for kind, listed in LISTED.items():
        for name in plain[kind].keys() | private[kind].keys():
            key = listed_as(name, bounded) if kind == "evaluate" and name in scores else name
            check(name, listed[key], plain[kind], private[kind], again[kind])


def check(name, said, plain, private, again):
    """Compares an entry with what the manual says of it."""
    there = private.get(name)
    if said == "the same":
        if name != "way":
            assert there == plain[name], name
    elif said == "one":
        assert there in (1, [1]), name
    elif said == "noise":
        assert there != plain[name] or not there, name
        assert there != again[name] or not there, name
    elif said == "none":
        values = there if isinstance(there, list) else [math.nan if there is None else there]
        assert all(isinstance(x, float) and math.isnan(x) for x in values), (name, there)
    elif said == "that of the run":
        assert there == LOCAL["noise_multiplier"]
        assert name not in plain
    else:
        assert said == "that their site knows"
        assert there == []


def test_methods_are_listed_by_their_slots():
    rows = re.findall(r"^\| (none|`[^|]+) \| (`[^|]+) \|$", SECTION, flags=re.MULTILINE)
    found = {}
    for slots, methods in rows:
        for method in re.findall(r"`([\w-]+)`", methods):
            found[method] = {re.sub(r"\d+$", "", name) for name in re.findall(r"`(\w+)`", slots)}
    data, expected = trainer(small_of_any()).data, {}
    for method in family("local"):
        e = small_of_any(**settings_of(method))
        sent = shapes_on(e, model_for(e, data.kind, data.example), data.outputs).sent
        expected[method] = {re.sub(r"\d+$", "", name) for name in sent}
    assert found == expected
