"""Sites that decide over gRPC: policy, approval, privacy budget, and what an audit notes."""

import json
import threading

import pytest

from benchmarks import chaos as module
from benchmarks.chaos import chaos, plan
from engram.runs.run import Run
from engram.simulations.deployed import run_deployed
from engram.simulations.loopback import LoopbackFederation
from engram.sites.approvals import APPROVALS, answer, given, requests, waiting
from engram.sites.audit import AUDIT, Audit
from engram.sites.policy import USUAL, keep_policy
from tests.link.wire.processes import PATIENCE
from tests.processes.support import wait_for
from tests.processes.test_federation import settings
from tests.sites.budgets import epsilon_of

pytestmark = pytest.mark.processes

POLICY = 'methods = ["fedavg"]\nsteps = 50\napproval = true\n'


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Two sites, of which each test gives one a policy."""
    with LoopbackFederation(tmp_path_factory.mktemp("two") / "fed", clients=2) as shared:
        yield shared


@pytest.fixture
def policy(federation):
    """Writes a site's policy, for one test; returns the site's folder."""
    written = []

    def write(site, text):
        folder = federation.server.parent / site
        written.append(folder / "policy.toml")
        written[-1].write_text(text)  # it holds from the next message on
        return folder

    yield write
    for path in written:
        path.unlink()
        keep_policy(path.parent, path.parent / "state", accept=True)  # as its operator does


def two(**special):
    alike = {"method": "fedavg", "num-clients": 2, "clients-per-round": 2}
    return settings(**alike | special)


def test_a_site_refuses_approves_and_notes(tmp_path, engram, federation, policy):
    there, words = federation, []
    site = policy("client-1", POLICY)
    place = {"on_word": words.append}
    check = ["run", "ditto", "--federation", there.server, "--check"]
    status, out, err = engram(*check, "--set", "local-steps=51")
    assert status == 1, out + err
    assert "client-0: takes part" in out
    (line,) = (line for line in out.splitlines() if line.startswith("client-1: "))
    assert "cannot serve this run: this site's policy is against it: " in line
    assert "method must be fedavg, got ditto; steps of a round must be at most 50, got 51" in line

    experiment = two(**{"min-clients": 2, "num-rounds": 2})
    going = threading.Thread(
        target=run_deployed, args=(experiment, tmp_path / "run", there.server), kwargs=place
    )
    going.start()
    told = "waits for its site's approval: there, engram approve CLIENT_FOLDER "
    said = wait_for(lambda: [word for word in words if told in word], "the request")
    assert said[0].startswith("client-1 (node ")
    name = said[0].partition(told)[2][:32]
    status, out, err = engram("approve", site)
    assert status == 0, err
    assert f"{name} waits since" in out
    assert "fedavg, 2 rounds" in out
    assert engram("approve", site, name)[0] == 0
    going.join(PATIENCE)
    status, out, _ = engram("status", site)
    assert "whole; the last lines:" in out
    assert "policy.toml: methods=['fedavg'], steps=50, approval=True" in out
    assert Run.open(tmp_path / "run").results["rounds"] == 2
    found = Audit(site / "state" / AUDIT).read()
    assert found.fault == ""
    assert [line["round"] for line in found.lines if line["kind"] == "train"] == [1, 2]
    assert [line["kind"] for line in found.lines].count("approved") == 1
    assert any("method must be fedavg" in line.get("why", "") for line in found.lines)


COST = (2 / 8.0) ** 2  # of an answer: updates lie 2 clip apart, and noise is 8 clip


def test_a_site_whose_budget_ends_amid_a_run_is_left_out_of_the_rest_and_says_why(
    tmp_path, engram, federation, policy
):
    private = {"privacy": "local", "clip": 0.5, "noise-multiplier": 8.0, "eval-every": 3}
    experiment, words = two(**private, **{"min-clients": 1, "num-rounds": 3}), []
    budget = 1.01 * epsilon_of([COST] * 2)  # two rounds: no untrained model is scored
    site = policy("client-0", f"epsilon = {budget}\n")
    place = {"on_word": words.append}
    run_deployed(experiment, tmp_path / "run", federation.server, **place)
    shown, status = (engram(name, site, "--json")[1] for name in ("ledger", "status"))
    said = federation.log("client-0").read_text()
    told = "this site's privacy budget is spent: epsilon"
    assert any(told in line and "\n" not in line.strip() for line in words), words
    assert told in said
    rows = Run.open(tmp_path / "run").rows()
    assert [row["absent"] for row in rows[1:]] == [{}, {}, {"0": "error"}]
    ledger, spent = json.loads(shown), pytest.approx(epsilon_of([COST] * 2), rel=1e-6)
    assert [line["kind"] for line in ledger["lines"]] == ["train", "train"]
    assert (ledger["accounts"], ledger["delta"], ledger["fault"]) == ({"0": spent}, USUAL.delta, "")
    assert json.loads(status)["spent"] == {"0": spent}


class Approving(LoopbackFederation):
    """A federation whose three sites approve what they are asked first, and nothing after that."""

    @property
    def places(self):
        return [self._folder / f"client-{i}" / "state" / APPROVALS for i in range(3)]

    def __enter__(self):
        there = super().__enter__()
        for place in self.places:
            (place.parents[1] / "policy.toml").write_text("approval = true\n")
        threading.Thread(target=self._approve, daemon=True).start()
        return there

    def _approve(self):
        for place in self.places:
            (one,) = wait_for(lambda place=place: waiting(place), "a request")
            answer(place, one.terms, "approved")


def test_kills_cost_no_memory_no_round_and_no_second_approval(tmp_path, monkeypatch):
    """Rounds after the last checkpoint are asked again, which one approval covers."""
    monkeypatch.setattr(module, "LoopbackFederation", Approving)
    outcome = chaos(tmp_path, plan(3, 6, seed=1), 6)
    assert outcome.unharmed, outcome
    assert sorted(outcome.kills) == ["client-2", "coordinator", "superlink"]
    for place in Approving(tmp_path / "federation", clients=3).places:
        (one,) = requests(place)
        used = given(place, one)
        assert (one.answer, used.beyond, one.answers["train"]) == ("approved", "", 6)
        assert used.tallies["train"].new == 6
