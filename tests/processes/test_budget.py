"""A site's own privacy budget over gRPC: at its end both sides say so, and the record has it."""

import json

import pytest

from engram.runs.record import RunRecord
from engram.simulations.deployed import run_deployed
from engram.simulations.loopback import LoopbackFederation
from engram.sites.policy import USUAL
from tests.processes.test_federation import settings
from tests.sites.budgets import epsilon_of

pytestmark = pytest.mark.processes

COST = (2 / 8.0) ** 2  # of an answer: updates lie 2 clip apart, and noise is 8 clip


def test_a_site_whose_budget_ends_amid_a_run_is_left_out_of_the_rest_and_says_why(tmp_path, engram):
    two = {"num-clients": 2, "clients-per-round": 2, "min-clients": 1, "num-rounds": 3}
    private = {"privacy": "local", "clip": 0.5, "noise-multiplier": 8.0, "eval-every": 3}
    experiment, words = settings(method="fedavg", **two, **private), []
    budget = 1.01 * epsilon_of([COST] * 2)  # two rounds: no untrained model is scored
    with LoopbackFederation(tmp_path / "fed", clients=2) as there:
        site = tmp_path / "fed" / "client-1"
        (site / "policy.toml").write_text(f"epsilon = {budget}\n")
        place = {"control": there.control, "on_word": words.append}
        run_deployed(experiment, tmp_path / "run", there.server, **place)
        shown, status = (engram(name, site, "--json")[1] for name in ("ledger", "status"))
        said = (tmp_path / "fed" / "logs" / "client-1.log").read_text()
    told = "this site's privacy budget is spent: epsilon"
    assert any(told in line and "\n" not in line.strip() for line in words), words
    assert told in said
    rows = RunRecord.open(tmp_path / "run").rows()
    assert [row["absent"] for row in rows[1:]] == [{}, {}, {"1": "error"}]
    ledger, spent = json.loads(shown), pytest.approx(epsilon_of([COST] * 2), rel=1e-6)
    assert [line["kind"] for line in ledger["lines"]] == ["train", "train"]
    assert (ledger["accounts"], ledger["delta"], ledger["fault"]) == ({"0": spent}, USUAL.delta, "")
    assert json.loads(status)["spent"] == {"0": spent}
