"""Standardized rows and targets, against plain loops of torch on rows standardized by numpy."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import engram
from engram.core.standardization import Moments, Units
from engram.data.schema.columns import Kind, Told
from engram.data.source import DATASETS
from engram.data.standardize import own_units
from engram.home.exported import load_model
from engram.home.predicting import predict
from engram.home.prediction_intervals import PREDICTED
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.wire.roster import describe_node, read_entry
from tests.samples import entry
from tests.simulations.apart import run_apart
from tests.support import trained_together

CLIENTS, ROWS, COLUMNS = 3, 20, 4

ETA, EPOCHS, ROUNDS = 0.05, 2, 3


def table(seed=0):
    """Columns of deviations 0.01 to 1000, a constant one, and targets around 300."""
    rng = np.random.default_rng(seed)
    raw = rng.normal(size=(CLIENTS * ROWS, COLUMNS))
    client = np.repeat(np.arange(CLIENTS), ROWS)
    y = 300 + 40 * (raw @ [1, -1, 0.5, 0] + client) + rng.normal(size=len(raw))
    x = raw * [0.01, 1, 1000, 0] + [5, 0, -1e5, 7] + client[:, None] * [0.01, 0, 500, 0]
    return x.astype(np.float32), y.astype(np.float32), client


def csv(folder, **more):
    x, y, client = table()
    columns = {f"x{k}": x[:, k] for k in range(COLUMNS)} | more
    path = folder / "rows.csv"
    pd.DataFrame({"task": client, "y": y, **columns}).to_csv(path, index=False)
    return f"csv:{path}"


class Curved(nn.Module):
    """No dense network, and none that grouped convolutions run."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(COLUMNS, 6), nn.Linear(6, 1)

    def forward(self, x):
        return self.two(torch.tanh(self.one(x)))


def dense():
    return nn.Sequential(nn.Linear(COLUMNS, 6), nn.ReLU(), nn.Linear(6, 1))


NETWORKS = {"dense": dense, "curved": Curved}
SETTINGS = {"task": "regression", "partition": "natural", "num_clients": CLIENTS, "batch_size": 12}
SETTINGS |= {"clients_per_round": CLIENTS, "validation_fraction": 0.0, "progress": False}
SETTINGS |= {"adapt_steps": 1, "adapt_lr": 0.1, "method": "fedavg", "eta": ETA}
SETTINGS |= {"local_epochs": EPOCHS, "num_rounds": ROUNDS, "eval_every": ROUNDS}
SETTINGS |= {"schema": 'columns.x3 = {kind = "number"}'}  # it would be left out


def started(name):
    torch.manual_seed(3)
    return NETWORKS[name]()


def rows_of(run):
    """Each client's training and test rows, as they are in the file."""
    data = run.learned.data
    return [
        [(s.x[s.rows[c]].double(), s.y[s.rows[c]].double()) for s in (data.train, data.test)]
        for c in range(CLIENTS)
    ]


def standards(rows, axis=0):
    """Means and deviations by numpy; 1 for what is constant."""
    values = np.concatenate([each.numpy() for each in rows])
    deviation = values.std(axis)
    return torch.tensor(values.mean(axis)), torch.tensor(np.where(deviation > 1e-9, deviation, 1))


def standardized(rows, mode):
    """Rows and targets as the loop sees them, and the targets' mean and deviation."""
    if mode == "none":
        return rows, (torch.tensor(0.0), torch.tensor(1.0))
    both = standards([train[0] for train, _ in rows])
    each = [standards([train[0]]) if mode == "client" else both for train, _ in rows]
    mean, deviation = standards([train[1] for train, _ in rows])
    found = [
        [((x - own[0]) / own[1], (y - mean) / deviation) for x, y in parts]
        for own, parts in zip(each, rows, strict=True)
    ]
    return found, (mean, deviation)


def loop(module, rows, rounds=ROUNDS):
    """Federated averaging with full batches, in plain torch."""
    common = copy.deepcopy(module).double()
    for _ in range(rounds):
        models = []
        for (x, y), _ in rows:
            own = copy.deepcopy(common)
            optimizer = torch.optim.SGD(own.parameters(), lr=ETA)
            for _ in range(EPOCHS):
                optimizer.zero_grad()
                nn.functional.mse_loss(own(x)[:, 0], y).backward()
                optimizer.step()
            models.append(own.state_dict())
        mean = {name: torch.stack([m[name] for m in models]).mean(0) for name in models[0]}
        common.load_state_dict(mean)
    return common


def simulated(folder, name, mode, engine="vectorized", **more):
    dataset = more.pop("dataset", None) or csv(folder)
    return engram.simulate(
        dataset=dataset,
        engine=engine,
        out=folder / f"{name}-{mode}-{engine}",
        **SETTINGS | {"model": started(name), "standardize": mode} | more,
    )


def check_model(run, module):
    for name, leaf in module.state_dict().items():
        torch.testing.assert_close(run.model[name].double(), leaf, rtol=1e-5, atol=1e-5)


def tame(folder):
    """Columns and targets that need no standardization."""
    rng, client = np.random.default_rng(1), np.repeat(np.arange(CLIENTS), ROWS)
    columns = {f"x{k}": rng.normal(size=len(client)) for k in range(COLUMNS)}
    frame = pd.DataFrame({"task": client, "y": columns["x0"] + client, **columns})
    frame.to_csv(folder / "tame.csv", index=False)
    return f"csv:{folder}/tame.csv"


CASES = [
    ("dense", "auto", "vectorized"),
    ("dense", "auto", "sequential"),
    ("dense", "client", "vectorized"),
    ("curved", "auto", "vectorized"),
    ("curved", "client", "sequential"),
    ("dense", "none", "vectorized"),
    ("curved", "none", "sequential"),
]


@pytest.mark.parametrize(("name", "mode", "engine"), CASES)
def test_training_is_a_plain_loop_on_standardized_rows(tmp_path, name, mode, engine):
    run = simulated(tmp_path, name, mode, engine, dataset=tame(tmp_path) if mode == "none" else "")
    assert (run.units == Units()) == (mode == "none")
    rows, (_, deviation) = standardized(rows_of(run), mode)
    module = loop(started(name), rows)
    check_model(run, module)
    for client, (_, (x, y)) in enumerate(rows):
        scores = run.clients.iloc[client]
        with torch.no_grad():  # in the targets' own units
            error = float(deviation * (module(x)[:, 0] - y).square().mean().sqrt())
        assert scores["rmse"] == pytest.approx(error, rel=1e-4)
        assert scores["loss"] == pytest.approx(error**2, rel=1e-4)


@pytest.mark.parametrize(("name", "engine"), [("dense", "vectorized"), ("curved", "sequential")])
def test_fine_tuning_is_a_step_on_standardized_rows(tmp_path, name, engine):
    run = simulated(tmp_path, name, "auto", engine, num_rounds=1)
    rows, (_, deviation) = standardized(rows_of(run), "auto")
    common = loop(started(name), rows, rounds=1)
    for client, ((x, y), (tested, expected)) in enumerate(rows):
        own = copy.deepcopy(common)
        nn.functional.mse_loss(own(x)[:, 0], y).backward()
        with torch.no_grad():
            for leaf in own.parameters():
                leaf.sub_(0.1 * leaf.grad)
            error = float(deviation * (own(tested)[:, 0] - expected).square().mean().sqrt())
        assert run.clients["rmse-tuned"].iloc[client] == pytest.approx(error, rel=1e-4)


def test_all_ways_of_training_standardize_targets(tmp_path, monkeypatch):
    rng, runs = np.random.default_rng(0), []
    data = [rng.normal(size=(20, 1, 6, 6)).astype(np.float32) for _ in range(CLIENTS)]
    data = [(x, 50 + 9 * x[:, 0, 2:4, 2:4].mean((1, 2))) for x in data]
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Conv2d(3, 2, 3), nn.Tanh(), nn.Flatten()]
    module = nn.Sequential(*layers, nn.Linear(8, 1), nn.Identity())
    given = SETTINGS | {"num_rounds": 6, "local_epochs": 0, "local_steps": 2, "batch_size": 4}
    for way in ("in-turn", "vmap"):  # of which the engine would take the fastest
        monkeypatch.setattr("engram.cohort.trainer.trainer.quickest", lambda *_, way=way: way)
        runs += [engram.simulate(data, model=module, out=tmp_path / way, **given)]
        assert [*runs[-1].metrics["ways"].dropna()] == [{way: 1}] * 6
        for name, leaf in runs[0].model.items():
            torch.testing.assert_close(runs[-1].model[name], leaf, rtol=1e-4, atol=1e-5)
        for name in ("loss", "train-loss"):
            one, other = (run.metrics[name].dropna().iloc[-1] for run in (runs[0], runs[-1]))
            assert one == pytest.approx(other, rel=1e-3)


# --- Whose rows count ----------------------------------------------------------------------------


def test_categories_and_flags_stay_as_they_are_and_test_rows_do_not_count(tmp_path):
    color = np.array(["red", "blue", "green"])[np.arange(CLIENTS * ROWS) % 3]
    x0 = np.where(np.arange(CLIENTS * ROWS) % 7 == 0, np.nan, table()[0][:, 0])
    dataset = csv(tmp_path, color=color, x0=x0)
    run = simulated(tmp_path, "dense", "auto", dataset=dataset, missing="indicator", model="linear")
    x = np.concatenate([train[0].numpy() for train, _ in rows_of(run)])
    mean, deviation = run.units.inputs
    # x0 to x3, each with a flag, then the three colors and their flag.
    assert (mean[1::2][:4], deviation[1::2][:4]) == ((0,) * 4, (1,) * 4)
    assert (mean[8:], deviation[8:]) == ((0,) * 4, (1,) * 4)
    np.testing.assert_allclose(mean[:8:2], x[:, :8:2].mean(0), rtol=1e-6)
    np.testing.assert_allclose(deviation[:6:2], x[:, :6:2].std(0), rtol=1e-6)
    assert deviation[6] == 1  # a constant column


def test_clients_that_never_train_do_not_count(tmp_path):
    run = simulated(tmp_path, "dense", "auto", unseen_clients=1, clients_per_round=2)
    (new,) = run.results["unseen"]
    seen = [train[0] for c, (train, _) in enumerate(rows_of(run)) if c != new]
    np.testing.assert_allclose(run.units.inputs.mean, standards(seen)[0], rtol=1e-6)


def experiment(**settings):
    return Experiment(**{k: v for k, v in (SETTINGS | settings).items() if k != "progress"})


@pytest.fixture
def site():
    def site(client):
        x, y, whose = table()
        return x[whose == client], y[whose == client]

    engram.data(site)
    yield
    del DATASETS["site"]


@pytest.mark.parametrize("mode", ["federation", "client"])
def test_nodes_that_see_their_own_rows_train_as_one_process(tmp_path, site, mode):
    given = {"dataset": "site", "standardize": mode, "model": "mlp", "hidden": "6"}
    one = engram.simulate(out=tmp_path / "one", **SETTINGS | given)
    nodes = run_apart(tmp_path / "nodes", experiment(**given))
    for parts in zip(one.units, nodes.units, strict=True):
        if parts != (None, None):
            for mine, theirs in zip(*parts, strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-12)
    torch.testing.assert_close(nodes.model, one.model, rtol=1e-5, atol=1e-6)
    assert one.results["rmse"] == pytest.approx(nodes.results["rmse"], rel=1e-5)


@pytest.mark.parametrize("mode", ["auto", "client"])
def test_runs_that_are_tuned_train_as_they_do_alone(tmp_path, mode):
    given = {"model": "mlp", "hidden": "6", "standardize": mode, "dataset": csv(tmp_path)}
    members = trained_together([experiment(**given, seed=seed, eta=0.02) for seed in (0, 1)])
    for seed, member in enumerate(members):
        how = SETTINGS | given | {"seed": seed, "eta": 0.02}
        alone = engram.simulate(out=tmp_path / f"{seed}", **how)
        own = alone.learned.slots["model"]
        torch.testing.assert_close(member.slots["model"], own, rtol=1e-4, atol=1e-5)


# --- After the run -------------------------------------------------------------------------------


def test_a_resumed_run_keeps_its_scale(tmp_path):
    whole = simulated(tmp_path, "curved", "auto", num_rounds=2)
    model = started("curved")
    given = SETTINGS | {"dataset": csv(tmp_path), "num_rounds": 1}
    first = engram.simulate(model=model, out=tmp_path / "parts", **given)
    again = engram.simulate(resume=first.folder, model=model, num_rounds=2, progress=False)
    assert again.units == whole.units
    for name, leaf in whole.model.items():  # either may be trained in turn, or all at once
        torch.testing.assert_close(again.model[name], leaf, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("mode", "form"), [("auto", "safetensors"), ("auto", "onnx"), ("client", "safetensors")]
)
def test_exported_models_take_rows_in_their_own_units(tmp_path, mode, form):
    run = simulated(tmp_path, "curved", mode, method="fedper")
    folder = run.export(1, out=tmp_path / "model", format=form)
    rows, (mean, deviation) = standardized(rows_of(run), mode)
    module = Curved()
    module.load_state_dict(run.personal_model(1))
    with torch.no_grad():
        said = mean + deviation * module(rows[1][1][0].float())[:, 0]
    raw = rows_of(run)[1][1][0].float()
    pd.DataFrame(raw.numpy(), columns=[f"x{k}" for k in range(COLUMNS)]).to_csv("new.csv")
    found = predict(folder, tmp_path / "new.csv", tmp_path / "said.csv").table
    np.testing.assert_allclose(found[PREDICTED], said, rtol=1e-4)


@pytest.mark.parametrize("mode", ["auto", "client"])
def test_newcomers_are_standardized_as_the_run_is(tmp_path, mode):
    run = simulated(tmp_path, "curved", mode, method="fedavg")
    x, y, _ = table(seed=5)
    frame = pd.DataFrame({f"x{k}": x[:, k] for k in range(COLUMNS)})
    frame.assign(y=y).to_csv("new.csv", index=False)
    folder = run.adapt("new.csv", out=tmp_path / "model")
    with torch.no_grad():
        said = load_model(folder)(torch.from_numpy(x))[:, 0]
    assert float((said - torch.from_numpy(y)).square().mean().sqrt()) < y.std()
    frame.to_csv("unlabeled.csv", index=False)
    common = load_model(run.adapt("unlabeled.csv", out=tmp_path / "common"))
    found, standard = Curved(), Moments.of(x.astype(float)).standard()
    found.load_state_dict(run.model)
    standard = run.units.inputs if mode == "auto" else standard
    with torch.no_grad():
        expected = run.units.targets.restored(found(standard.standardized(torch.from_numpy(x))))
        torch.testing.assert_close(common(torch.from_numpy(x)), expected, rtol=1e-5, atol=1e-4)


# --- What is told --------------------------------------------------------------------------------


def test_arrays_stay_as_they_are_and_different_scales_are_said(tmp_path, caplog):
    x, y, whose = np.random.default_rng(0).normal(size=(60, 3)) * [0.1, 0.001, 0.3], *table()[1:]
    data = [(x[whose == c], y[whose == c]) for c in range(CLIENTS)]
    run = engram.simulate(data, model="linear", out=tmp_path / "run", **SETTINGS)
    assert run.units.inputs is None
    assert run.units.targets is not None
    said = [r.getMessage() for r in caplog.records if "differ in scale" in r.getMessage()]
    assert len(said) == 1
    assert "column 1 has deviation 0.00" in said[0]
    assert "and column 2 0." in said[0]
    assert "standardize=federation" in said[0]


def test_inputs_without_columns_are_refused_in_one_line(tmp_path):
    data = [(np.zeros((20, 1, 4, 4), dtype=np.float32), np.arange(20.0))] * CLIENTS
    with pytest.raises(Refused, match=r"^standardize must be auto or none .* float32\[1,4,4\]$"):
        engram.simulate(data, model="linear", out=tmp_path, **SETTINGS | {"standardize": "client"})
    private = SETTINGS | {"standardize": "federation", "privacy": "central", "clip": 1.0}
    with pytest.raises(Refused, match=r"standardize = federation needs .*: privacy = central ends"):
        engram.simulate(data, **private)


def test_with_privacy_nothing_is_told(tmp_path):
    run = simulated(tmp_path, "dense", "auto", privacy="central", clip=1.0)
    assert run.units == Units()
    scale = own_units(run.experiment, run.learned.data, 1).inputs
    np.testing.assert_allclose(scale.mean, standards([rows_of(run)[1][0][0]])[0], rtol=1e-6)


def test_a_node_that_tells_nonsense_is_refused():
    kind = Kind("float32[2]", 1)
    for told, words in (
        (Told(Moments(5, (1.0,), (1.0,))), "must be of 2 columns"),
        (Told(Moments(5, (1.0, np.nan), (1.0, 1.0))), "finite"),
        (Told(Moments(5, (1.0, 1.0), (-1.0, 1.0))), "a sum of squares >= 0"),
        (Told(Moments(5, (1.0, 1e39), (1.0, 1.0))), "of float32"),
        (Told(Moments(5, (1.0, 1.0), (1.0, 1e200))), "of float32"),
        (Told(Moments(6, (1.0, 1.0), (1.0, 1.0))), "of its 5 rows, got 6"),
        (Told(None, Moments(5, (1.0, 1.0, 1.0), (1.0, 1.0, 1.0))), "must be of 1 or 1 columns"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            read_entry(describe_node({0: 5}, kind, told=told))


# --- Divergence ----------------------------------------------------------------------------------


class Recurrent(nn.Module):
    """A small LSTM over six steps of two numbers."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(2, 8, batch_first=True)
        self.head = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.head(self.lstm(x.reshape(-1, 6, 2))[0][:, -1])


def forecast(folder, mean, deviation, **settings):
    rng = np.random.default_rng(0)
    data = []
    for sd in (2, 3, 4, 5):
        x = rng.normal(size=(30, 12)).astype(np.float32)
        y = sd / 1.7 * x.reshape(-1, 6, 2)[:, -3:, 0].sum(1) + 0.3 * rng.normal(size=30)
        data.append((x, mean + deviation * y))
    given = {"task": "regression", "partition": "natural", "num_clients": 4, "num_rounds": 3}
    given |= {"clients_per_round": 2, "method": "fedavg", "model": Recurrent} | settings
    return engram.simulate(data, out=folder, progress=False, **given)


def test_training_does_not_depend_on_the_targets_units(tmp_path):
    """What diverges in plain torch at the defaults trains as targets around 0 do."""
    far, near = forecast(tmp_path / "far", 3000, 7), forecast(tmp_path / "near", 0, 1)
    plain = forecast(tmp_path / "plain", 3000, 7, standardize="none")
    # Even a bias alone comes no nearer in 15 steps: 0.8^15 * 3000 = 106.
    assert not (plain.results["rmse"] or np.inf) < 2 * far.results["rmse"]
    torch.testing.assert_close(far.model, near.model, rtol=1e-4, atol=1e-4)
    for model in ("", "-tuned"):
        expected = pytest.approx(7 * near.results[f"rmse{model}"], rel=1e-3)
        assert far.results[f"rmse{model}"] == expected
    assert far.results["loss"] == pytest.approx(49 * near.results["loss"], rel=1e-3)
    losses = (run.metrics["train-loss"].dropna().iloc[-1] for run in (far, near))
    assert next(losses) == pytest.approx(49 * next(losses), rel=1e-3)


METHODS = ("ditto", "fedem", "fedper", "ifca", "pfedme", "scaffold")


def layers():
    return nn.Sequential(nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 1))


@pytest.mark.full
def test_no_method_depends_on_the_targets_units(tmp_path):
    for method in METHODS:
        given = {"method": method, "clients_per_round": 4, "num_rounds": 2, "model": layers}
        far, near = (
            forecast(tmp_path / f"{method}-{unit}", 300 * unit, 1 + unit, **given)
            for unit in (1, 0)
        )
        for name, times in (("rmse", 2), ("loss", 4)):
            with entry(method, name):
                assert far.results[name] == pytest.approx(times * near.results[name], rel=1e-2)
