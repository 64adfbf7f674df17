"""The comparison of servers' steps, in small."""

import pytest

from engram.online.studies import server_steps
from tests.evidence.server_step import compare


def test_server_steps_are_compared_on_the_same_federation(monkeypatch):
    monkeypatch.setattr(server_steps, "_WIDTH", 1)
    settings = {"method": "fedavg", "model": "linear", "num-rounds": 4, "local-steps": 1}
    found = compare(settings, seeds=2)
    assert [(row["server"], row["way"]) for row in found] == [
        (name, way) for name in server_steps.STEPS for way in ("default", "tuned")
    ]
    for default, tuned in zip(found[::2], found[1::2], strict=True):
        means = [
            sum(outcome["after"] for outcome in row["outcomes"]) / 2 for row in (default, tuned)
        ]
        assert means == pytest.approx([row["tried"][row["size"]] for row in (default, tuned)])
        assert means[0] <= means[1] == max(tuned["tried"].values())
        assert all(len(outcome["losses"]) == 3 for outcome in tuned["outcomes"])
