"""Scores of a given model: which rows they are of, whatever the server says, and what they cost."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import engram
from engram.client import app as module
from engram.home.exported import load_model
from engram.server.run import run as run_on
from engram.settings.errors import AWAITED
from engram.settings.fingerprint import fingerprint
from engram.sites.approvals import APPROVALS, answer, requests
from engram.sites.audit import Audit
from engram.sites.evaluate_at_sites import given_model, visit
from engram.sites.policy import keep_policy
from engram.wire.messages import EVALUATE, TRAIN
from engram.wire.wire import ARRAYS, CLIENTS, CONFIG, MODEL, ROSTER_QUERY, read_list
from tests.samples import entry
from tests.server.nodes import NodesGrid
from tests.sites.budgets import answer_of, at, refusal
from tests.support import small

SPLIT = 2  # the stream that draws test rows
GIVEN = {"task": "regression", "model": "mlp", "hidden": "4", "target_column": "y"}


def table(rows, seed):
    rng = np.random.default_rng(seed)
    found = pd.DataFrame(rng.normal(size=(rows, 2)).round(3), columns=["a", "b"])
    return found.assign(y=found.a - 2 * found.b + rng.normal(size=rows).round(3))


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A model of other sites: its folder, its description and its parameters."""
    folder = tmp_path_factory.mktemp("elsewhere")
    rows = table(90, 1).assign(task=np.repeat(["north", "south", "west"], 30))
    rows.to_csv(folder / "all.csv", index=False)
    given = GIVEN | {"method": "fedavg", "num_rounds": 1, "clients_per_round": 3}
    run = engram.simulate(
        dataset=f"csv:{folder}/all.csv", **given, out=folder / "r", progress=False
    )
    return run.export(out=folder / "model"), given_model(folder / "model")


@pytest.fixture
def site(tmp_path):
    """A site with 40 rows."""
    module._node.cache_clear()
    rows = table(40, 2)
    rows.to_csv(tmp_path / "own.csv", index=False)
    return SimpleNamespace(folder=tmp_path, rows=rows, data=f"csv:{tmp_path}/own.csv")


def ask(site, about, state, kind=EVALUATE):
    """Returns the site's answer to a model."""
    config = {"fingerprint": fingerprint(), MODEL: json.dumps(about)}
    content = {ARRAYS: state, CONFIG: config}
    return answer_of(small(), kind, content, data=site.data, **at(site.folder))


def rules(site, text):
    (site.folder / "policy.toml").write_text(text)
    keep_policy(site.folder, site.folder, accept=True)


def scores(reply):
    """Returns the number of rows, the scores by metric, and whether a training held them out."""
    assert not reply.error, reply.error
    details = reply.content[CLIENTS]
    names = read_list(details, "metrics", str)
    (rows,) = read_list(details, "rows", int)
    return rows, {name: details[name][0] for name in names}, details["held-out"]


def losses(model, rows):
    """The mean squared error of a model on rows, and its root, to three digits, by numpy."""
    x = torch.tensor(rows[["a", "b"]].to_numpy(dtype=np.float32))
    errors = load_model(model)(x).detach().numpy()[:, 0] - rows.y.to_numpy()
    return {float(f"{np.sqrt((errors**2).mean()):.3g}")}


# --- Which rows --------------------------------------------------------------------------------

CHOSEN = [
    {"seed": 5},
    {"test-fraction": 0.025},  # of 40 rows, one
    {"test-fraction": 0.99},
    {"protocol": "few-shot", "adapt-shots": 15},  # of 16 test rows, one is scored
    {"validation-fraction": 0.9},
    {"num-clients": 1, "clients-per-round": 1},
    {"num-clients": 1000},
    {"partition": "iid"},
    {"partition": "natural"},
    {"unseen-clients": 1, "clients-per-round": 2},
    {"task-column": "c"},
    {"dataset": "digits"},
]


def test_no_setting_of_a_server_chooses_the_rows(elsewhere, site):
    """They are the first 16 of 40 in an order that the site's key draws: 0.4 of them."""
    folder, model = elsewhere
    for chosen in CHOSEN:
        about = model.about | {"settings": model.about["settings"] | chosen}
        with entry(chosen):
            rows, found, held_out = scores(ask(site, about, model.state))
            split = json.loads((site.folder / "split.json").read_text())
            order = np.random.default_rng([split["key"], SPLIT]).permutation(40)
            assert (rows, split["fraction"], held_out) == (16, 0.4, False)
            (rmse,) = losses(folder, site.rows.iloc[order[:16]])
            assert found["rmse"] == rmse
            assert split["key"] >= 2**64  # nobody guesses it
            (site.folder / "split.json").unlink()  # so that each draws anew


def test_the_rows_stay_the_same_and_are_others_at_another_site(elsewhere, site, tmp_path):
    _, model = elsewhere
    first = scores(ask(site, model.about, model.state))
    assert scores(ask(site, model.about, model.state)) == first
    other = SimpleNamespace(folder=tmp_path / "other", data=site.data)
    other.folder.mkdir()
    assert scores(ask(other, model.about, model.state))[1] != first[1]
    (site.folder / "split.json").write_text('{"key": 3, "fraction": 0.5}')
    assert scores(ask(site, model.about, model.state))[0] == 20
    for wrong in ('{"key": 3}', '{"key": -3, "fraction": 0.5}', '{"key": 3, "fraction": 1.5}'):
        (site.folder / "split.json").write_text(wrong)
        told = refusal(ask(site, model.about, model.state))
        assert "split.json must have a key and a fraction: its operator deletes it" in told


def test_no_answer_is_exact_or_of_a_single_row(elsewhere, site):
    """From seven exact losses of linear models on one row, its inputs and target are solved."""
    _, model = elsewhere
    rng = np.random.default_rng(3)
    for number in range(30):
        settings = {"seed": int(rng.integers(100)), "test-fraction": float(rng.uniform(0.01, 0.99))}
        state = {n: torch.tensor(a.numpy() * rng.normal()) for n, a in model.state.items()}
        about = model.about | {"settings": model.about["settings"] | settings}
        rows, found, _ = scores(ask(site, about, state))
        assert rows == 16, number
        assert all(value == float(f"{value:.3g}") for value in found.values())


def test_no_score_is_of_fewer_than_ten_rows_or_than_a_policy_wants(elsewhere, site):
    """0.4 of 24 rows are 9.6, of 23 are 9.2, and of 40 are 16."""
    _, model = elsewhere
    rules(site, "least-count = 17")
    told = refusal(ask(site, model.about, model.state))
    assert told == "this node's clients have too few test rows: a score is of 17 or more"
    rules(site, "least-count = 1")
    site.rows.iloc[:24].to_csv(site.folder / "own.csv", index=False)
    assert scores(ask(site, model.about, model.state))[0] == 10
    site.rows.iloc[:23].to_csv(site.folder / "own.csv", index=False)
    told = refusal(ask(site, model.about, model.state))
    assert "too few test rows: a score is of 10 or more" in told


# --- Models of trainings that the site took part in -----------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A training of two sites, of 40 and of 50 rows: the grid, and its common model."""
    folder = tmp_path_factory.mktemp("trained")
    for number, rows in enumerate((40, 50)):
        table(rows, 7 + number).to_csv(folder / f"{number}.csv", index=False)
    e = small(
        method="fedavg", num_clients=2, clients_per_round=2, timeout=5.0, seed=11,
        test_fraction=0.3, protocol="standard", **GIVEN,
    )  # fmt: skip
    grid = NodesGrid(e, [f"csv:{folder}/{number}.csv" for number in range(2)], folder)
    run_on(grid, e, folder / "run", engine="flower")
    engram.load_run(folder / "run").export(out=folder / "model")
    return grid, folder / "model", folder


def test_a_model_of_a_training_is_scored_on_the_rows_that_it_has_held_out(trained):
    """0.3 of 40 and of 50 rows, in the order of the training's seed, which is 11."""
    grid, model, folder = trained
    found = visit(grid, [given_model(model)], range(2), patience=0)
    for each, n in zip(found, (40, 50), strict=True):
        order = np.random.default_rng([11, SPLIT]).permutation(n)
        rows = pd.read_csv(folder / f"{each.client}.csv").iloc[order[: round(0.3 * n)]]
        assert (each.rows, each.held_out) == (len(rows), True)
        assert {each.scores["rmse"]} == losses(model, rows)


def test_its_record_says_which_rows_and_which_network_and_not_the_server(trained):
    grid, model, _ = trained
    given = given_model(model)
    usual = visit(grid, [given], range(2), patience=0)
    for chosen in [{"seed": 12}, {"test-fraction": 0.9}, {"hidden": "4"}]:
        told = given._replace(about=given.about | {"settings": given.about["settings"] | chosen})
        with entry(chosen):
            assert visit(grid, [told], range(2), patience=0) == usual


def test_other_parameters_are_no_model_of_the_training_whatever_the_server_says(trained):
    grid, model, _ = trained
    given = given_model(model)
    state = {n: torch.tensor(a.numpy() * 1.01) for n, a in given.state.items()}
    found = visit(grid, [given._replace(state=state)], range(2), patience=0)
    assert [(each.rows, each.held_out) for each in found] == [(16, False), (20, False)]


def test_a_training_that_is_forgotten_has_no_model(trained, tmp_path):
    """Its rows are the site's own choice then, of which the model may have learned from some."""
    _, model, folder = trained
    e = small(method="fedavg", **GIVEN)
    grid = NodesGrid(e, [f"csv:{folder}/{number}.csv" for number in range(2)], tmp_path)
    found = visit(grid, [given_model(model)], range(2), patience=0)
    assert [(each.rows, each.held_out) for each in found] == [(16, False), (20, False)]


# --- As for training -----------------------------------------------------------------------------


def test_the_rules_of_training_hold_for_scores(elsewhere, site):
    for rule, says in [
        ("rounds-a-day = 0", "rounds a day must be at most 0, and 0 were today"),
        ('methods = ["molar"]', "method must be molar, got fedavg"),
        ("model-mib = 0.0001", "models must have at most 0.0001 MiB, got"),
        ("mib = 0.0001", "a round must be of at most 0.0001 MiB, got"),
        ("evaluate = false", "scores of its rows are not sent"),
        ("epsilon = 4.0", "epsilon is 4 in all, and scores of a given model have no noise"),
        ('privacy = ["local"]', "privacy must be local, and scores of a given model have none"),
    ]:
        rules(site, rule)
        for kind in (EVALUATE, TRAIN, ROSTER_QUERY):
            with entry(rule, kind):
                assert says in refusal(ask(site, elsewhere[1].about, elsewhere[1].state, kind))


def test_each_model_counts_as_a_round_of_the_day(elsewhere, site):
    rules(site, "rounds-a-day = 3")
    _, model = elsewhere
    kinds = (EVALUATE, ROSTER_QUERY, TRAIN)
    for kind in kinds:
        assert scores(ask(site, model.about, model.state, kind))[0] == 16
    for kind in kinds:
        told = refusal(ask(site, model.about, model.state, kind))
        assert "rounds a day must be at most 3, and 3 were today (UTC)" in told
    lines = Audit(site.folder / "log").read().lines
    assert [line["kind"] for line in lines[:3]] == [MODEL] * 3
    assert [line["today"] for line in lines[:3]] == [1, 2, 3]


def test_each_model_waits_for_the_sites_approval(elsewhere, site):
    rules(site, "approval = true")
    _, model = elsewhere
    waiting = ask(site, model.about, model.state)
    assert waiting.error.code == AWAITED
    (one,) = requests(site.folder / APPROVALS)
    assert (one.method, one.rounds, one.run) == ("scores of a fedavg model", 1, 1)
    answer(site.folder / APPROVALS, one.terms, "approved")
    assert scores(ask(site, model.about, model.state))[0] == 16
    state = {n: torch.tensor(a.numpy() * 1.01) for n, a in model.state.items()}
    assert ask(site, model.about, state).error.code == AWAITED
    about = model.about | {"settings": model.about["settings"] | {"metrics": "mae"}}
    assert ask(site, about, model.state).error.code == AWAITED
    assert len(requests(site.folder / APPROVALS)) == 3


# --- What is refused ----------------------------------------------------------------------------


def test_a_node_without_its_own_data_lets_no_server_choose_its_share(elsewhere, site):
    site.data = ""
    told = refusal(ask(site, elsewhere[1].about, elsewhere[1].state))
    assert told.startswith("this node has no data of its own (engram node --data), and scores")


def test_what_is_no_model_is_refused(elsewhere, site):
    _, model = elsewhere
    assert "cannot be read: 'what'" in refusal(ask(site, {"settings": {}}, model.state))
    site.rows.rename(columns={"b": "c"}).to_csv(site.folder / "own.csv", index=False)
    assert refusal(ask(site, model.about, model.state)) == (
        "this node has inputs float32[2] (a, c) and outputs 0, and the model takes inputs "
        "float32[2] (a, b) and outputs 0"
    )
    bandit = model.about | {"settings": {"method": "meta-ban"}}
    assert "models of meta-ban are not scored" in refusal(ask(site, bandit, model.state))
