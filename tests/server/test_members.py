"""Members that come and go while a run goes on, in one process, with all methods."""

import pytest
import torch

from engram.compare.report_rows import report_rows
from engram.compare.reports.local import client_lines
from engram.data.schema.columns import Kind
from engram.guards.calibration import noise_multiplier
from engram.guards.noise import secret_noise
from engram.runs.run import Run
from engram.server.run import run as run_on
from engram.server.run_start import strategy_of
from engram.settings.errors import Refused
from engram.simulations.engine import simulate
from engram.wire.roster import Roster
from tests.samples import sampled
from tests.server.members import ROWS, SCRIPT, ScriptedFederation
from tests.server.nodes import NodesGrid
from tests.support import SEVEN, assert_same, small_of_any

ROUNDS = 5


def experiment(method, **change):
    given = {"num_clients": 3, "clients_per_round": 3, "dataset": ROWS, "partition": "natural"}
    given |= {"num_rounds": ROUNDS, "eval_every": 2, "checkpoint_every": 1, "timeout": 5.0}
    return small_of_any(method=method, **given | change)


def on_nodes(method, folder, *, state, rounds=ROUNDS, first=0, **change):
    e = experiment(method, num_rounds=rounds, **change)
    run_on(ScriptedFederation(e, state, first=first), e, folder, engine="flower")
    return Run.open(folder)


@pytest.mark.parametrize("method", sampled(SEVEN, ["ditto", "scaffold", "pfedhn", "local-moml"]))
def test_a_simulation_replays_who_took_part(tmp_path, method):
    there = on_nodes(method, tmp_path / "there", state=tmp_path / "nodes")
    rows = there.rows()
    assert [set(row["members"]) for row in rows] == [SCRIPT[row["round"]][0] for row in rows]
    cohorts = {r["round"]: {*r["cohort"]} - {*map(int, r["absent"])} for r in rows if r["round"]}
    assert cohorts == {number: SCRIPT[number][1] for number in range(1, ROUNDS + 1)}
    assert [row["absent"] for row in rows[1:]] == [{}, {}, {"0": "off line"}, {}, {}]
    e = experiment(
        method, num_clients=4, clients_per_round=4, participation=str(tmp_path / "there")
    )
    simulate(e, tmp_path / "here")
    here = Run.open(tmp_path / "here")
    one, other = there.load_checkpoint(), here.load_checkpoint()
    assert_same(one.model, other.model, atol=1e-5)
    assert_same(one.state, other.state, atol=1e-5)
    assert [row["members"] for row in here.rows()] == [row["members"] for row in rows]
    assert there.results["clients"]["ids"] == [0, 2, 3]  # who has left is not missed


def test_a_report_counts_the_members_of_the_end(tmp_path):
    there = on_nodes("fedavg", tmp_path / "there", state=tmp_path / "nodes")
    assert (there.clients, there.members) == (4, 3)
    runs = {"fedavg": [there]}
    (row,) = (row for row in report_rows(runs) if row["method"] == "fedavg")
    assert (row["scored"], row["trained"]) == (3, 3)  # without the one that has left
    assert not [line for line in client_lines(runs, [row]) if "never sampled" in line]
    simulate(experiment("fedavg", num_rounds=1), tmp_path / "here")
    assert Run.open(tmp_path / "here").members == 3  # of a run whose clients stay


@pytest.mark.parametrize("method", sampled(["fedamp", "pfedhn", "scaffold"], ["scaffold"]))
def test_a_resumed_run_goes_on_with_those_who_are_members_then(tmp_path, method):
    whole = on_nodes(method, tmp_path / "whole", state=tmp_path / "a")
    for rounds in (1, 3, ROUNDS):  # one client comes, and one leaves, between the parts
        place = {"resume": str(tmp_path / "parts")} if rounds > 1 else {}
        first = min(rounds, 2) if place else 0
        on_nodes(
            method, tmp_path / "parts", state=tmp_path / "b", rounds=rounds, first=first, **place
        )
    one, other = (record.load_checkpoint() for record in (whole, Run.open(tmp_path / "parts")))
    assert_same(one.model, other.model, atol=1e-6)
    assert_same(one.state, other.state, atol=1e-6)


def test_means_over_all_clients_shrink_as_more_come(tmp_path):
    e = experiment("scaffold", num_rounds=1)
    strategy = strategy_of(e, roster(3), secret_noise)
    strategy.init()
    strategy.state = strategy.state
    before = {name: 0 * leaf + 4.0 for name, leaf in strategy.init().items()}
    larger = strategy_of(e, roster(4), secret_noise)
    larger.init()
    after = larger.succeed(strategy, before)
    assert {float(leaf.max()) for n, leaf in after.items() if n.startswith("control")} == {3.0}
    assert {float(leaf.max()) for n, leaf in after.items() if n.startswith("model")} == {4.0}


def test_the_server_forgets_what_it_keeps_for_clients_that_left():
    e = experiment("fedfomo", num_rounds=1)
    strategy = strategy_of(e, roster(3), secret_noise)
    strategy.init()
    start = strategy.state
    strategy.state = {name: leaf + 1 for name, leaf in start.items()}
    strategy.forget([1])
    for name, leaf in strategy.state.items():
        kept = torch.ones_like(leaf)
        if name in ("known", "affinity") or name.startswith("models/"):
            kept[1] = 0
        if name == "affinity":
            kept[:, 1] = 0
        torch.testing.assert_close(leaf, start[name] + kept, equal_nan=True)


def test_a_record_that_does_not_fit_is_refused(tmp_path):
    on_nodes("fedavg", tmp_path / "there", state=tmp_path / "nodes")
    told = {"num_clients": 4, "clients_per_round": 4, "participation": str(tmp_path / "there")}
    for change, says in (
        ({"num_clients": 3, "clients_per_round": 3}, "clients-per-round must be at least 4, got 3"),
        ({"num_rounds": 6}, r"participation must be .* 6 rounds, .* \(round 6 lacks\)"),
        ({"participation": str(tmp_path)}, "is not the folder of a run"),
    ):
        with pytest.raises(Refused, match=says):
            simulate(experiment("fedavg", **told | change), tmp_path / "here")
        assert not (tmp_path / "here").exists()
    e = experiment("fedavg", **told)
    with pytest.raises(Refused, match="participation must be empty on nodes"):
        run_on(NodesGrid(e, [ROWS] * 4, tmp_path), e, tmp_path / "here", engine="flower")


def roster(clients):
    return Roster(range(clients), [10] * clients, Kind("float32[6]", 3))


@pytest.mark.parametrize("sampling", ["poisson", "without-replacement"])
def test_a_federation_that_grows_keeps_the_noise_that_its_accountant_counts_with(sampling):
    """Noise solved anew for more clients is less than is claimed: a smaller share is drawn."""
    private = {"privacy": "central", "clip": 0.1, "epsilon": 4.0, "sampling": sampling}
    e = experiment("fedavg", **private | {"clients_per_round": 1})
    larger = strategy_of(e, roster(6), secret_noise)
    assert noise_multiplier(larger.rounds.merge.settings) == noise_multiplier(e)
