"""Models of hospitals that are taken home, scored at every site, and adapted to newcomers."""

import itertools
import json
import re

import numpy as np
import pandas as pd
import pytest
import torch

import engram
from engram.cli import models_cli
from engram.client.disk_memory import DiskStore
from engram.client.training_description import read_training
from engram.home.exported import load_model
from engram.home.node_export import remembered_package
from engram.home.predicting import predict
from engram.server.run import run as run_on
from engram.settings.errors import Refused
from engram.simulations.engine import simulate
from engram.sites.evaluate_at_sites import Visited, given_model, visit
from tests.hospitals import SITES, write_hospitals
from tests.server.nodes import NodesGrid
from tests.support import declared_values, small

COLUMNS = {
    "schema": declared_values(outcome="home|icu|ward", sex="f|m", smoker="current|former|never"),
    "input_columns": "age,bp,crea,sex,smoker",
    "missing": "median",
}


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A run of four hospitals: its folder, the nodes, their files, and two sites' models."""
    folder = tmp_path_factory.mktemp("hospitals")
    paths = write_hospitals(folder / "data", mended=True)
    e = small(
        method="fedper", num_clients=4, clients_per_round=4, timeout=5.0, hidden="8", model="mlp",
        target_column="outcome", **COLUMNS,
    )  # fmt: skip
    grid = NodesGrid(e, [f"csv:{path}" for path in paths], folder)
    (folder / "node-2").mkdir()
    (folder / "node-2" / "schema.toml").write_text('columns.age = {missing = ["unread"]}')
    run_on(grid, e, folder / "run", engine="flower")
    places = [next((folder / f"node-{n}" / "memory").iterdir()) for n in range(1, 5)]
    for client in (0, 1):
        package = remembered_package(
            read_training(places[client]), client, DiskStore(places[client])
        )
        package.write(folder / f"model-{client}", "safetensors")
    return folder, grid, paths, places


def test_every_sites_model_is_scored_at_every_site(federation):
    folder, grid, _, places = federation
    models = [given_model(folder / f"model-{client}") for client in (0, 1)]
    found = visit(grid, models, range(len(SITES)), patience=0)
    assert [(each.model, each.client) for each in found] == [
        (str(folder / f"model-{model}"), client) for model in (0, 1) for client in range(4)
    ]
    for each in found:
        training = read_training(places[each.client])
        own = each.model.endswith(str(each.client))
        if not own:
            split = json.loads((places[each.client].parents[1] / "split.json").read_text())
            drawn = {"seed": split["key"], "test_fraction": split["fraction"]}
            e = training.experiment.model_copy(update=drawn)
            training = training._replace(experiment=e)
        test = training.data(each.client).test
        x, y = test.take(torch.arange(len(test.y)))
        outputs = load_model(each.model)(x).detach()
        assert (each.rows, each.held_out) == (len(y), own)
        accuracy = float((outputs.argmax(1) == y).double().mean())
        loss = float(torch.nn.functional.cross_entropy(outputs, y))
        assert each.scores["accuracy"] == float(f"{accuracy:.3g}")
        assert each.scores["loss"] == pytest.approx(loss, rel=5e-3)


def test_nothing_of_a_sites_rows_goes_to_other_sites_but_its_parameters(federation):
    folder, _, paths, _ = federation
    whole = json.loads((folder / "model-1" / "model.json").read_text())
    about = given_model(folder / "model-1").about
    assert whole["ranges"]
    assert (about["ranges"], about["intervals"]) == ([], [])
    fills = [column.get("fill") for column in whole["kind"]["schema"]["columns"]]
    assert any(fill is not None for fill in fills)
    assert "fill" not in json.dumps(about)
    assert "unread" in whole["settings"]["schema"]
    assert "unread" in json.dumps(whole["kind"])
    assert "unread" not in json.dumps(about)
    assert str(paths[1].parent) not in json.dumps(about)


def test_a_site_says_why_it_scores_a_model_not(federation, tmp_path):
    folder, grid, paths, _ = federation
    model = given_model(folder / "model-0")
    e = small(method="fedper", num_clients=4, clients_per_round=4, hidden="8", model="mlp")
    other = paths[1].parent / "other.csv"
    pd.read_csv(paths[1]).rename(columns={"bp": "pressure"}).to_csv(other, index=False)
    data = [f"csv:{paths[0]}", f"csv:{other}", "", f"csv:{paths[3]}"]
    found = visit(NodesGrid(e, data, tmp_path), [model], range(4), patience=0)
    assert [each.rows > 0 for each in found] == [True, False, False, True]
    said = " ".join(each.why for each in found)
    assert "this node's data cannot be used: its log says why" in said
    assert "this node has no data of its own (engram node --data), and scores those models" in said
    altered = model._replace(about=model.about | {"form": "shifted"})
    first, second, *_ = visit(grid, [altered], range(4), patience=0)
    assert first.held_out  # it is the site's own model, of which it needs no description
    assert "the network is not the one that was exported" in second.why
    nameless = model._replace(about={"settings": {}})
    (first, *_) = visit(grid, [nameless], range(4), patience=0)
    assert "the model's description cannot be read: 'what'" in first.why


def test_scores_on_rows_that_no_training_held_out_have_a_star(capsys, monkeypatch):
    monkeypatch.setattr(models_cli.console, "width", 200)
    found = [Visited("m", n, 20, {"accuracy": 0.5 + n / 4}, "", n == 0) for n in range(2)]
    models_cli._show(found[:1])
    assert "*" not in capsys.readouterr().out
    models_cli._show(found)
    out = capsys.readouterr().out
    assert "0.5 (20 rows) " in out
    assert "0.75 (20 rows*)" in out
    assert "*: rows that the site drew; the model may have learned from some" in out


def test_a_model_of_named_classes_is_not_scored_on_numbers(tmp_path):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(120, 2)), columns=["age", "bp"])
    died = (rows.age + rng.normal(size=120) > 0).astype(int)
    sites = np.repeat(["north", "south", "west"], 40)
    rows.assign(task=sites, y=died.map({0: "home", 1: "ward"})).to_csv("text.csv", index=False)
    rows.assign(y=died).to_csv("numbers.csv", index=False)
    given = {"method": "molar", "family": "logistic"}
    run = engram.simulate(dataset="csv:text.csv", **given, out="run", progress=False)
    model = given_model(run.export("south", out="south"))
    grid = NodesGrid(small(**given, num_clients=1), ["csv:numbers.csv"], tmp_path)
    (found,) = visit(grid, [model], range(1), patience=0)
    assert found.why == (
        "this node has inputs of a table (age, bp) and outputs numbers, and the model takes inputs "
        "of a table (age, bp) and outputs home, ward"
    )


def test_a_model_that_holds_rows_is_not_sent(tmp_path):
    x = np.random.default_rng(0).normal(size=(3, 20, 4)).astype("float32")
    rows = [(each, np.arange(20) % 2) for each in x]
    given = {"num_rounds": 1, "clients_per_round": 3, "progress": False}
    run = engram.simulate(rows, method="knn-per", out="run", **given)
    with pytest.raises(Refused, match="one holds its client's rows, and is not sent to other"):
        given_model(run.export(0, out="one"))


def test_the_common_model_says_what_it_has_learned_from(federation, tmp_path):
    folder, *_ = federation
    common = engram.load_run(folder / "run").export(out=tmp_path / "common")
    card = (common / "card.md").read_text()
    assert "| learned from | data that its clients' nodes have, 4 clients |" in card
    assert "| inputs | age, bp, crea, sex, smoker |" in card
    assert "| outputs | classes: home, icu, ward |" in card
    assert "there are no scores of this model" in card  # its head has not been trained


def test_a_model_is_adapted_to_a_table(federation, tmp_path):
    folder, _, paths, _ = federation
    path, names = tmp_path / "newcomer.csv", ["outcome", "sex", "age", "crea", "smoker", "bp"]
    pd.read_csv(paths[0]).sample(60, random_state=1)[names].to_csv(path, index=False)
    model = engram.load_run(folder / "run").adapt(f"csv:{path}", out=tmp_path / "model")
    assert "adapted, cross-validated | accuracy" in (model / "card.md").read_text()
    table = predict(model, path, tmp_path / "found.csv").table
    assert set(table["predicted"]) <= {"home", "icu", "ward"}
    assert len(table) == 60


def test_coefficients_are_scored_at_every_site(tmp_path):
    """At its own site a model has the loss that the run says; elsewhere, that of its own rows."""
    paths = write_hospitals(tmp_path / "data", mended=True)
    e = small(
        method="molar", num_clients=4, timeout=5.0, target_column="days", missing="median",
        input_columns="age,bp,crea",
    )  # fmt: skip
    grid = NodesGrid(e, [f"csv:{path}" for path in paths], tmp_path)
    results = run_on(grid, e, tmp_path / "run", engine="flower")
    (place,) = (tmp_path / "node-2" / "memory").iterdir()
    package = remembered_package(read_training(place), 1, DiskStore(place))
    package.write(tmp_path / "model", "safetensors")
    assert [each.name for each in package.exported.ranges] == ["age", "bp", "crea"]
    assert package.exported.intervals
    found = visit(grid, [given_model(tmp_path / "model")], range(4), patience=0)
    assert [each.client for each in found] == [0, 1, 2, 3]
    assert [each.rows for each in found] == results["clients"]["rows"]
    own = results["clients"]["loss-personal"][1]
    assert found[1].scores == {"loss": float(f"{own:.3g}")}
    assert [each.held_out for each in found] == [False, True, False, False]
    assert len({each.scores["loss"] for each in found}) == 4


@pytest.mark.parametrize("method", ["fedavg", "molar"])
def test_nodes_that_read_shares_of_one_file_export_and_score(tmp_path, method):
    rng, n = np.random.default_rng(0), 180
    frame = pd.DataFrame({"age": rng.normal(60, 10, n), "sex": rng.choice(["f", "m"], n)})
    frame["days"] = frame.age / 10 + (frame.sex == "m") + rng.normal(size=n)
    frame = frame.assign(site=np.repeat(["a", "b", "c"], 60))
    frame.loc[::9, "age"] = np.nan
    shared = tmp_path / "shared"
    shared.mkdir()
    frame.to_csv(shared / "all.csv", index=False)
    given = {"num_clients": 3, "dataset": f"csv:{shared}/all.csv", "task_column": "site"}
    given |= {"target_column": "days", "missing": "median", "timeout": 5.0, "method": method}
    if method == "fedavg":
        given |= {"task": "regression", "clients_per_round": 3, "partition": "natural"}
        given |= {"model": "mlp", "hidden": "4", "num_rounds": 2, "protocol": "standard"}
    e = small(**given)
    grid = NodesGrid(e, [""] * 3, tmp_path, **{"data-dir": str(shared)})
    run_on(grid, e, tmp_path / "run", engine="flower")
    simulate(e, tmp_path / "here")
    folders = []
    for client in range(3):
        (place,) = (tmp_path / f"node-{client + 1}" / "memory").iterdir()
        store = DiskStore(place)
        package = remembered_package(read_training(place), client, store)
        there = engram.load_run(tmp_path / "here").export(
            "abc"[client], out=tmp_path / f"h{client}"
        )
        other = json.loads((there / "model.json").read_text())
        own = package.exported.to_json()
        assert package.notes == []
        assert [each["name"] for each in own["ranges"]] == ["age"]
        assert own["ranges"] == other["ranges"]
        assert own["kind"]["schema"]["columns"] == other["kind"]["schema"]["columns"]
        levels = [(i["level"], *i["radii"]) for i in own["intervals"]]
        expected = [(i["level"], *i["radii"]) for i in other["intervals"]]
        np.testing.assert_allclose(levels, expected, rtol=1e-4)
        assert len(levels) >= 2
        package.write(folder := tmp_path / f"model-{client}", "safetensors")
        folders.append(folder)
    found = visit(grid, [given_model(folder) for folder in folders], range(3), patience=0)
    scored = {(each.model, each.client): each for each in found}
    for (client, folder), site in itertools.product(enumerate(folders), range(3)):
        each = scored[str(folder), site]
        if site != client and method == "molar":  # the site has never been served by it
            assert "this node has no data of its own" in each.why
            continue
        assert (each.rows, each.held_out) == (24, True)
        if site == client:
            name, value = next(iter(each.scores.items()))
            told = re.search(
                rf"its 24 test rows \| {name} \| (\S+)", (folder / "card.md").read_text()
            )
            assert value == pytest.approx(float(told[1]), rel=5e-3)
