"""Facts by which protections and settings go together: each of them refuses something."""

from itertools import permutations
from pathlib import Path

import pytest

from engram.guards.facts import Fact
from engram.settings import conflicts
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment

FROZEN = Path(__file__).with_name("unfit.txt").read_text().splitlines()
ROUNDS = {"num_clients": 20, "clients_per_round": 10, "clip": 1.0}
SETTINGS = [
    *[{"privacy": kind} for kind in ("local", "central", "example")],
    *[{"merge": kind} for kind in ("median", "multi-krum")],
    *[{"compress": kind} for kind in ("8-bit", "top-k")],
    *[{"sampling": "poisson", "privacy": "central"}, {"sampling": "poisson"}],
    *[{"standardize": kind} for kind in ("client", "federation")],
    *[{"method": kind} for kind in ("scaffold", "fedpac", "per-fedavg")],
    {"aggregation": "secure"},
    {"aggregation": "secure", "privacy": "central"},
    {"merge": "median", "bucket_size": 2},
    {"bucket_size": 2},
    {"epsilon": 3.0},
    {"epsilon": 3.0, "noise_multiplier": 2.0},
    {"clip": 0.0},
    {"clip_quantile": 0.5},
    {"clip_quantile": 0.5, "privacy": "central"},
    {"server_step": "universal"},
    {"buffer_size": 3},
    {"clock": "drawn", "over_selection": 0.5},
    {"clock": "drawn", "deadline": 9.0},
    {"local_epochs": 1},
    {"order": "stream"},
    {"missing": "median"},
    {"patience": 1},
    {"shards": 2},
    {"participation": "runs/a"},
    {"min_clients": 2},
    {"attack": "sign-flip"},
    {"merge": "krum", "num_malicious": 4},
]


def refusals():
    found = set()
    for one, other in permutations(SETTINGS, 2):
        try:
            Experiment(**(ROUNDS | one | other))
        except Refused as error:
            found |= {fault.text for fault in error.faults if " needs " in fault.text}
    return sorted(found)


def test_pairs_of_settings_are_refused_by_facts_none_of_which_is_idle(monkeypatch):
    """Without any one of the facts that a setting needs or ends, the table is another."""
    parts, parts_of = set(), conflicts.parts_of

    def noted(*given):
        found = parts_of(*given)
        parts.update((str(p), frozenset(p.needs), frozenset(p.ends)) for p in found)
        return found

    monkeypatch.setattr(conflicts, "parts_of", noted)
    found = refusals()
    assert found == FROZEN
    table = "\n".join(["", *found, ""])
    for part, needs, ends in parts:
        by_mean = {Fact.MEAN} if part == "merge = multi-krum" else set()  # else it is another guard
        for fact in needs - by_mean:
            assert f"\n{part} needs that {fact.value}: " in table
        for fact in ends - {Fact.TRAINED, Fact.GRADIENTS}:  # which guards of users need
            assert f" that {fact.value}: {part} ends that\n" in table


def test_without_a_fact_that_a_protection_gives_others_would_be_refused_or_uncovered():
    secure, central = {"aggregation": "secure", "clip_quantile": 0.5}, {"privacy": "central"}
    assert Experiment(**ROUNDS | central | {"sampling": "poisson"}).is_private
    with pytest.raises(Refused) as caught:
        Experiment(**ROUNDS | central | secure)
    assert "privacy is not central" not in str(caught.value)  # whose noise comes in shares
    assert Experiment(**ROUNDS, method="fedavg", privacy="example").hides_rows
    assert Experiment(**ROUNDS, privacy="local").covers_clients
