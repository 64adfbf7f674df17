"""Exported networks predict what the run's scores say, in every format and form."""

import json
from functools import cache, partial
from itertools import chain

import numpy as np
import pytest
import torch
from torch import nn

import engram
from engram.api import Run
from engram.home import exporting
from engram.home.exported import load_model, runner
from engram.home.predicting import predict
from engram.home.prediction_intervals import outputs_of
from engram.networks import registry
from engram.networks.base import called
from engram.settings.errors import Refused
from engram.settings.families import family
from engram.simulations.engine import simulate
from tests.networks.networks import CASES
from tests.networks.test_modules import experiment
from tests.samples import EIGHT, entry, sampled
from tests.support import small_of_any

CLIENTS = 6
ONNX = [
    pytest.param("feddbe", "network", marks=pytest.mark.full),  # with a bias in it
    ("gpfl", "shifted"),  # with a gate in it
    ("knn-per", "recalling"),  # with rows beside it
    ("fedem", "mixture"),
    pytest.param("fedbn", "network", marks=pytest.mark.full),
]
NETWORKS = ["convolutions", "batch norm and dropout", "fixed statistics", "tied transformer"]
NETWORKS += ["two inputs", "built-in resnet with group norm"]


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """Runs, each of which is executed once."""

    @cache
    def run(**settings):
        shared = {"num_rounds": 2, "num_clients": CLIENTS, "rows_per_class": 4, "adapt_steps": 3}
        shared["clients_per_round"] = 2
        shared["model"] = "resnet" if settings["method"] == "fedbn" else "mlp"
        shared["hidden"] = "4" if settings["method"] == "fedbn" else "8"
        e = small_of_any(**shared | {"unseen_clients": 1} | settings)
        folder = tmp_path_factory.mktemp("run") / "run"
        simulate(e, folder)
        return engram.load_run(folder)

    return run


def told(run, runs, client):
    """Returns accuracy and loss of a model on a client's test rows, and what the run says."""
    test = run.learned.data.test
    x, y = test.take(torch.from_numpy(test.rows[client]))
    outputs = outputs_of(runs, x, len(y))
    accuracy = float((outputs.argmax(1) == y).float().mean())
    loss = float(nn.functional.cross_entropy(outputs, y))
    row = run.results["clients"]
    return (accuracy, loss), (row["accuracy"][client], row["loss"][client])


PERSONAL = ("fedavg", "fedem", "pfedhn", "ifca", "knn-per", "feddbe")  # and layers of its own
TABLE = [(method, "") for method in family("local")] + [(name, "dense1.*") for name in PERSONAL]
QUICK = [(method, personal) for method, personal in TABLE if method in EIGHT]
QUICK += [("knn-per", ""), ("feddbe", "")]  # what is served with votes, or a shift


@pytest.mark.parametrize(("method", "personal"), sampled(TABLE, QUICK))
def test_a_loaded_model_predicts_what_the_runs_scores_say(method, personal, run_of, tmp_path):
    run = run_of(method=method, **({"personal": personal} if personal else {}))
    trained = set(chain(*(row["cohort"] for row in run.learned.record.rows() if "cohort" in row)))
    assert 0 < len(trained) < CLIENTS - len(run.results["unseen"])  # clients of all three kinds
    for client in range(CLIENTS):
        folder = run.export(client, out=tmp_path / f"client-{client}")
        module = load_model(folder)
        assert not module.training
        found, expected = told(run, partial(called, module), client)
        assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("method", "form"), ONNX)
def test_onnx_computes_the_same(method, form, run_of, tmp_path):
    run = run_of(method=method)
    plain = load_model(run.export(0, out=tmp_path / "plain"))
    x, _ = run.learned.data.test.take(torch.arange(40))
    with runner(run.export(0, out=tmp_path / "onnx", format="onnx")) as (exported, runs):
        assert exported.form == form
        torch.testing.assert_close(
            outputs_of(runs, x, 40), outputs_of(plain, x, 40), atol=1e-5, rtol=1e-5
        )
        found, expected = told(run, runs, 0)
    assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.usefixtures("plug_ins")
@pytest.mark.parametrize("case", NETWORKS)
def test_any_network_comes_back(case, tmp_path):
    e = experiment(case, method="ditto", num_rounds=1, clients_per_round=4)
    simulate(e, tmp_path / "run", engine="sequential")
    run = Run(tmp_path / "run", e.source)
    learned = run.learned
    module = load_model(run.export(2, out=tmp_path / "model"))
    (params,) = learned.personal(2).models
    x, _ = learned.data.test.take(torch.arange(5))
    with torch.no_grad():
        expected = learned.network.apply(params, x)
        torch.testing.assert_close(called(module, x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("plug_ins")
def test_onnx_of_a_network_with_several_inputs(tmp_path):
    e = experiment("two inputs", method="fedavg", num_rounds=1)
    simulate(e, tmp_path / "run")
    run = Run(tmp_path / "run", e.source)
    module = load_model(run.export(out=tmp_path / "plain"))
    x, _ = run.learned.data.test.take(torch.arange(5))
    with runner(run.export(out=tmp_path / "onnx", format="onnx")) as (_, runs):
        torch.testing.assert_close(runs(x), called(module, x).detach(), atol=1e-5, rtol=1e-5)


def test_the_common_model_is_what_clients_share(run_of, tmp_path):
    run = run_of(method="fedavg")
    module = load_model(run.export(out=tmp_path / "common"))
    state = module.state_dict()
    assert state.keys() == run.model.keys()
    assert all(torch.equal(leaf, run.model[name]) for name, leaf in state.items())
    assert "mean over clients | accuracy" in (tmp_path / "common" / "card.md").read_text()
    mixed = load_model(run_of(method="fedem").export(out=tmp_path / "mixed"))
    assert mixed.weights.tolist() == pytest.approx([1 / 3] * 3)  # as whoever never trained
    assert "there are no scores of this model" in (tmp_path / "mixed" / "card.md").read_text()
    with pytest.raises(Refused, match="ifca has 3 common models, of which a client's rows"):
        run_of(method="ifca").export(out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_card_says_what_the_model_is_and_how_well_it_does(run_of, tmp_path):
    run = run_of(method="fedper", clip=1.0, privacy="central", min_clients=2)
    folder = run.export("3", out=tmp_path / "model")
    text = (folder / "card.md").read_text()
    accuracy = run.results["clients"]["accuracy"][3]
    assert text.startswith("# Personal model of 3\n")
    assert f"rows | accuracy | {accuracy:.4g} | " in text
    epsilon = run.results["epsilon"]
    assert f"differentially private: epsilon {epsilon:.4g} at delta 1e-05" in text
    assert "| `fedper.eta` | 0.1 |" in text
    (source,) = json.loads((run.folder / "config.json").read_text())["sources"]
    assert f"| source | {source} |" in text


def test_a_kept_model_leaves_without_the_rows_and_has_the_runs_scores(tmp_path):
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(30, 4)).astype("f"), np.arange(30) % 2) for _ in range(3)]
    run = engram.simulate(
        rows, method="ditto", num_rounds=1, clients_per_round=3, out="run", progress=False
    )
    with_rows = run.export(1, out="one")
    again = engram.load_run("run")  # which has no rows
    without = again.export(1, out="other")
    one, other = (load_model(folder).state_dict() for folder in (with_rows, without))
    assert all(torch.equal(leaf, other[name]) for name, leaf in one.items())
    accuracy = run.results["clients"]["accuracy"][1]
    told = f"| its test rows, as the run says | accuracy | {accuracy:.4g} | - |"
    assert told in (without / "card.md").read_text()


# --- Refusals -----------------------------------------------------------------------------------


def test_what_cannot_be_exported_is_refused_in_one_line(run_of, tmp_path, monkeypatch):
    run = run_of(method="fedavg")
    with pytest.raises(Refused, match=r"client must be in 0\.\.5, got 6"):
        run.export(6)
    with pytest.raises(Refused, match="format must be one of safetensors, onnx, peft, got 'pkl'"):
        run.export(1, format="pkl")
    monkeypatch.setattr(exporting, "find_spec", lambda name: None)
    with pytest.raises(Refused, match="onnx needs more packages: pip install 'engram"):
        run.export(1, format="onnx")
    run.export(1)
    with pytest.raises(Refused, match="client-1-model is there already: give out another"):
        run.export(1)
    simulate(run.experiment.model_copy(update={"num_rounds": 1}), tmp_path / "short")
    (tmp_path / "short" / "results.json").unlink()
    with pytest.raises(Refused, match="short is not finished: resume it first"):
        engram.load_run(tmp_path / "short").export(2)


def test_an_altered_model_is_refused(run_of, tmp_path):
    folder = run_of(method="fedavg").export(0, out=tmp_path / "model")
    about, data = ((folder / name).read_bytes() for name in ("model.json", "model.safetensors"))
    (folder / "model.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(Refused, match=r"model\.safetensors has been altered: its checksum is not"):
        load_model(folder)
    (folder / "model.safetensors").write_bytes(data)
    for old, new in ((b'"hidden": "8"', b'"hidden": "9"'), (b'"crc32"', b'"crc"')):
        (folder / "model.json").write_bytes(about.replace(old, new))
        with pytest.raises(Refused, match=r"model\.json has been altered: its checksum is"):
            load_model(folder)
    with pytest.raises(Refused, match=r"must be the folder of an exported model: it has no model"):
        load_model(tmp_path)


@pytest.mark.usefixtures("plug_ins")
def test_a_network_that_is_not_known_here_is_refused(tmp_path, monkeypatch):
    simulate(experiment("convolutions", method="fedavg", num_rounds=1), tmp_path / "run")
    folder = engram.load_run(tmp_path / "run").export(out=tmp_path / "model")
    monkeypatch.delitem(registry.NETWORKS, "convolutions")
    with pytest.raises(
        Refused, match=r"model cannot be loaded: model must be one of .*, got 'conv"
    ):
        load_model(folder)
    registry.model(CASES["group norm"][0], "convolutions")  # another network, so called
    with pytest.raises(Refused, match="the network is not the one that was exported: Error"):
        load_model(folder)


@pytest.mark.usefixtures("plug_ins")
@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_another_network_under_a_used_name_is_refused(method, tmp_path):
    registry.model(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), "used")
    x, y = torch.zeros(12, 4).numpy(), np.arange(12) % 2
    given = {"num_rounds": 1, "clients_per_round": 2, "model": "used", "progress": False}
    folder = engram.simulate([(x, y)] * 2, method=method, out=tmp_path / "run", **given).folder
    np.savez("new.npz", x=x, y=y)
    message = r"^[^\n]*another network than the one called used here: [^\n]*$"
    for name, other in {
        "wider": lambda: nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 2)),
        "deeper": lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)),
        "alone": lambda: nn.Linear(4, 2),
    }.items():
        registry.NETWORKS.pop("used")
        registry.model(other, "used")
        run = engram.load_run(folder)
        for made in (
            run.export,
            lambda run=run: run.export(0),
            lambda run=run: run.personal_model(0),
            lambda run=run: run.adapt("new.npz"),
        ):
            with entry(name), pytest.raises(Refused, match=message):
                made()


def test_fine_tuning_that_diverges_leaves_no_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(3, 20, 4)).astype("float32")
    rows = {name: (x[i], np.arange(20) % 2) for i, name in enumerate(("park", "lake", "hill"))}
    given = {"num_rounds": 1, "clients_per_round": 3, "adapt_lr": 1e20, "progress": False}
    run = engram.simulate(rows, method="per-fedavg", out="run", **given)
    np.savez("elm.npz", x=x[0], y=rows["park"][1])
    tried = {
        "lake": lambda: run.personal_model("lake"),
        "park": lambda: run.export("park"),
        "elm": lambda: run.adapt("elm.npz"),
    }
    for name, made in tried.items():
        message = f"client {name} has no model: after fine-tuning, by 10 steps of adapt-lr 1e\\+20"
        with pytest.raises(Refused, match=message):
            made()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elm.npz", "run"]
    assert all(leaf.isfinite().all() for leaf in run.model.values())


@pytest.mark.usefixtures("plug_ins")
def test_an_onnx_file_needs_no_network_of_the_users(tmp_path, monkeypatch):
    e = experiment("convolutions", method="fedavg", num_rounds=1)
    simulate(e, tmp_path / "run")
    run = Run(tmp_path / "run", e.source)
    folder = run.export(out=tmp_path / "model", format="onnx")
    x, _ = run.learned.data.test.take(torch.arange(4))
    expected = run.learned.network.apply(run.learned.common.models[0], x).softmax(-1)
    np.savez("rows.npz", x=x.numpy())
    monkeypatch.delitem(registry.NETWORKS, "convolutions")
    found = predict(folder, tmp_path / "rows.npz", tmp_path / "found.csv").table
    np.testing.assert_allclose(found["probability 2"], expected[:, 2], atol=1e-6)
    with pytest.raises(Refused, match="must be safetensors to be loaded as a module"):
        load_model(folder)
