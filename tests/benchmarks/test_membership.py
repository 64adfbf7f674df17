"""Nodes that come, leave, are revoked and cut off by a script, while a run goes on."""

import subprocess
import sys
from collections import Counter
from itertools import count

import pytest

from benchmarks.membership import Outcome, begins_with, members_after, plan
from engram.settings.fingerprint import source_root
from tests.samples import entry

FINE = Outcome({}, 8, 0, 1.0, 0, 0, 0, 3, 0, 1, 0.0, 1e-7)


def test_a_script_is_one_that_can_be():
    for nodes, seed in [(4, 0), (4, 1), (9, 2), (20, 0)]:
        with entry(nodes, seed):
            events = plan(nodes, 100, seed)
            assert events == plan(nodes, 100, seed)
            assert events != plan(nodes, 100, seed + 1)
            rounds = [event.server_round for event in events]
            assert rounds == sorted(rounds)
            new, members = count(begins_with(nodes)), {*range(begins_with(nodes))}
            for event in events:
                if event.kind == "join":
                    assert event.client == next(new)
                    members.add(event.client)
                else:
                    assert event.client in members
                    members -= set() if event.kind == "cut" else {event.client}
                assert (event.seconds > 0) == (event.kind == "cut")
                assert 0 < event.server_round < 60
            assert members_after(nodes, events) == members
            assert len(members) >= 2
            counts = Counter(event.kind for event in events)
            few, some = max(1, nodes // 8), max(1, nodes // 4)
            assert counts == {"join": some, "leave": few, "revoke": few, "cut": some}


def test_a_run_is_harmed_by_whatever_goes_wrong():
    assert FINE.unharmed
    assert not any(
        FINE._replace(**{name: value}).unharmed
        for name, value in {
            **dict.fromkeys(("missed", "stops", "rounds_lost", "strangers", "memories_lost"), 1),
            **dict.fromkeys(("memory_difference", "difference"), float("nan")),
        }.items()
    )


@pytest.mark.processes
def test_a_run_goes_on_whoever_comes_and_leaves():
    # A process of its own, as it loads a plug-in.
    script = [sys.executable, "-m", "benchmarks.membership"]
    words = ["--nodes", "4", "--rounds", "6", "--seed", "1"]
    kept = {"capture_output": True, "text": True, "cwd": source_root()}
    done = subprocess.run([*script, *words], check=False, **kept)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "{'join': 1, 'leave': 1, 'revoke': 1, 'cut': 1}" in done.stdout
