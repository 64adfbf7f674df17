"""The same apps on Flower's Ray simulation, started by `flwr run` as a user would."""

import importlib
import json
import tomllib

import numpy as np
import pytest
import torch

from engram.core.tree import is_finite
from engram.runs.run import Run
from engram.settings.fingerprint import source_root
from engram.settings.plugins import add_plugins, load_plugins
from engram.simulations.engine import simulate
from tests.brought import cases, loop
from tests.brought.test_elsewhere import CHOSEN
from tests.cli.test_new import project
from tests.golden import federated
from tests.networks import mixed, networks
from tests.networks.test_modules import QUICK
from tests.networks.test_modules import experiment as network_experiment
from tests.registries import forgotten
from tests.samples import entry
from tests.settings.test_plugins import write
from tests.simulations.superlink import SuperLink, run_several, toml, write_app
from tests.simulations.test_apps import APPS
from tests.support import assert_same, small

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def superlink(tmp_path_factory):
    with SuperLink(tmp_path_factory.mktemp("ray")) as link:
        yield link


GOLDEN = ("local-moml, carried, exact", "pfedme")
LONGER = {"num_rounds": 10, "checkpoint_every": 4}
TABLE = {"dataset": "sparse-linear", "num_clients": 7}
EXPERIMENTS = {
    **{name: federated.experiment(name) for name in GOLDEN},
    "fedavg": small(method="fedavg", **LONGER),
    "median": small(merge="median", clip=0.1, **LONGER),
    "molar": small(method="molar", **TABLE),
    "molar-bandit": small(method="molar-bandit", num_rounds=8, **TABLE),
    "meta-ban": small(
        method="meta-ban", dataset="linear-groups", num_clients=5, num_rounds=9, meta_steps=2
    ),
    "noise": small(privacy="local", clip=0.1, noise_multiplier=0.5),
}


NETWORK_PLUG_INS = (networks, mixed)
USER_PLUG_INS = (cases,)
# Every network, and all methods that an engine can tell apart.
NETWORKS = dict(QUICK) | {"convolutions": "pfedhn", "volume": "scaffold"}
NETWORKS |= {"low-rank adapters": "fedavg", "built-in resnet with group norm": "fedem"}
BROUGHT = [name for name in cases.CASES if name not in CHOSEN]  # which have nodes over gRPC


def load(modules):
    """Loads files as plug-ins; returns their names, with commas."""
    names = ",".join(module.__file__.removesuffix(".py") for module in modules)
    add_plugins(names)
    load_plugins()
    return names


def of_networks(folder):
    """The experiments of users' networks, and of rows of several types, by name."""
    found = {}
    for case, method in NETWORKS.items():
        rows = folder / f"{case}.npz"
        np.savez(rows, **networks.CASES[case][1], task=networks.clients())
        settings = {"method": method, "memory": "carry", "dataset": f"npz:{rows}"}
        found[f"{case}, {method}"] = network_experiment(case, **settings)
    images = (mixed.all_grey, mixed.some_grey, mixed.none_grey)
    return found | {of.__name__: mixed.experiment(of) for of in images}


def of_users(folder):
    """The experiments with users' losses, metrics and data, by name."""
    return {name: loop.experiment(name, folder) for name in BROUGHT}


@pytest.fixture(scope="module")
def ray(superlink, tmp_path_factory):
    """All experiments in one run of Flower: what was printed, and their folder."""
    folder = tmp_path_factory.mktemp("several")
    configs = [e.to_config() | {"out": f"{folder}/{name}"} for name, e in EXPERIMENTS.items()]
    text = (source_root() / "simulations" / "presets" / "cross_silo.toml").read_text()
    preset = tomllib.loads(text) | {"local-steps": 1}
    for rounds, place in (2, "out"), (4, "resume"):
        settings = json.dumps(preset | {"num-rounds": rounds})
        configs.append({"engram": settings, place: f"{folder}/preset"})
    # Some of the users' networks have names of those before, which they replace.
    for modules, made in (NETWORK_PLUG_INS, of_networks), (USER_PLUG_INS, of_users):
        with pytest.MonkeyPatch.context() as patched, forgotten(patched):
            own = {"plug-ins": load(modules)}
            (folder / made.__name__).mkdir()
            for name, e in made(folder / made.__name__).items():
                configs.append(e.to_config() | own | {"out": f"{folder}/{name}"})
    return run_several(superlink, folder, configs), folder


def record_of(ray, name):
    printed, folder = ray
    assert (folder / name / "results.json").is_file(), printed
    return Run.open(folder / name)


@pytest.mark.parametrize("name", [*GOLDEN, "fedavg", "median"])
def test_vectorized_sequential_and_ray_give_the_same_model_and_cohorts(ray, tmp_path, name):
    for engine in ("vectorized", "sequential"):
        simulate(EXPERIMENTS[name], tmp_path / engine, engine=engine)
    assert ray[0].count("roster: 20 clients on 3 nodes, all running this source") == 5
    records = [Run.open(tmp_path / engine) for engine in ("vectorized", "sequential")]
    records.append(record_of(ray, name))
    models = [record.load_checkpoint().model for record in records]
    assert_same(models[1], models[0], atol=1e-5)
    assert_same(models[2], models[0], atol=1e-5)
    cohorts = [[row.get("cohort") for row in record.rows()] for record in records]
    assert cohorts[0] == cohorts[1] == cohorts[2]
    assert len(cohorts[0][-1]) == 4
    found = [record.results for record in records]
    for key in found[0].keys() & {"accuracy", "accuracy-common", "accuracy-tuned"}:
        # One query row more or less of one client: 1/10/20.
        assert found[2][key] == pytest.approx(found[0][key], abs=0.0051)
    if name in GOLDEN:
        assert federated.elsewhere(name, ray[1] / name) == []


@pytest.mark.parametrize(
    ("method", "shown"), [("molar", "held-out loss"), ("molar-bandit", "regret")]
)
def test_sites_exchange_estimates(ray, tmp_path, method, shown):
    expected = simulate(EXPERIMENTS[method], tmp_path / method)
    found = record_of(ray, method).results
    assert f"{method}: 7 sites, {shown}" in ray[0], ray[0]
    for column in expected["clients"]:
        here, there = expected["clients"][column], found["clients"][column]
        np.testing.assert_allclose(there, here, rtol=1e-10, err_msg=column)
    coef = np.ravel(found["shared"]["coef"])
    np.testing.assert_allclose(coef, np.ravel(expected["shared"]["coef"]), rtol=1e-10)


def test_sites_take_turns(ray, tmp_path):
    simulate(EXPERIMENTS["meta-ban"], tmp_path / "here")
    there = record_of(ray, "meta-ban")
    assert "5 sites, regret" in ray[0], ray[0]
    one, other = (record.rows() for record in (Run.open(tmp_path / "here"), there))
    assert [row["arm"] for row in other] == [row["arm"] for row in one]


def test_noise_is_secret_on_nodes(ray, tmp_path):
    expected = simulate(EXPERIMENTS["noise"], tmp_path / "vectorized")
    one, other = Run.open(tmp_path / "vectorized"), record_of(ray, "noise")
    assert other.results["epsilon"] == expected["epsilon"]
    asked = (other.folder / "clients-asked.txt").read_text().splitlines()
    assert [line.split() for line in asked] == [
        [str(client) for client in row["cohort"]] for row in other.rows()[1:]
    ]
    key = "model/dense0.weight"
    apart = one.load_checkpoint().model[key] - other.load_checkpoint().model[key]
    # Four rounds' noise, each of deviation 0.05 on a mean of 4 updates, and on both sides.
    noise = 0.05 / 2 * 8**0.5
    assert 0.7 * noise < float(apart.std()) < 1.5 * noise


def test_a_preset_runs_and_goes_on(ray):
    record = record_of(ray, "preset")
    assert "(global model: " in ray[0]
    assert [row["round"] for row in record.rows()] == [0, 1, 2, 3, 4], ray[0]
    assert len(list((record.folder / "memory").glob("*/client-*"))) == 10


def test_users_networks_and_rows_of_several_types_give_the_same(ray, plug_ins, tmp_path):
    load(NETWORK_PLUG_INS)
    for name, e in of_networks(ray[1] / "of_networks").items():
        simulate(e, tmp_path / name)
        records = Run.open(tmp_path / name), record_of(ray, name)
        one, other = (record.load_checkpoint().model for record in records)
        with entry(name):
            torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)
            assert is_finite(one)


def test_users_own_things_keep_their_contract(ray, plug_ins, tmp_path):
    load(USER_PLUG_INS)
    for name in BROUGHT:
        with entry(name):
            folder = record_of(ray, name).folder
            loop.check(name, loop.experiment(name, ray[1] / "of_users"), folder)


def test_a_project_runs_as_in_one_process(superlink, tmp_path, engram, monkeypatch, plug_ins):
    folder = project(engram, monkeypatch)
    assert engram("run", "--out=here")[0] == 0
    printed = superlink.run(folder, toml({"out": str(tmp_path / "there")}))
    assert "roster: 6 clients on 2 nodes, all running this source" in printed, printed
    one, other = (Run.open(path) for path in (folder / "here", tmp_path / "there"))
    assert_same(other.load_checkpoint().model, one.load_checkpoint().model, atol=1e-6)
    losses = [record.results["clients"]["loss"] for record in (one, other)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-6)
    # Both say which plug-in, by the same digest, though `flwr run` has packed and unpacked it.
    assert other.config["sources"] == one.config["sources"]


# And of the same, without Ray: tests/simulations/test_apps.py.
def test_an_app_of_a_users_own(superlink, tmp_path, monkeypatch, plug_ins):
    import engram

    write(tmp_path / "app" / "mine" / "__init__.py", "")
    write(tmp_path / "app" / "mine" / "apps.py", APPS)
    write_app(tmp_path / "app", "mine.apps", 'out = ""\nnum-rounds = 1\n')
    settings = {"out": str(tmp_path / "there"), "num-rounds": 3}
    printed = superlink.run(tmp_path / "app", toml(settings))
    assert "roster: 3 clients on 2 nodes, all running this source" in printed, printed
    monkeypatch.syspath_prepend(tmp_path / "app")
    given = importlib.import_module("mine.apps").given
    here = engram.simulate(**given, num_rounds=3, out=tmp_path / "here", progress=False)
    there = engram.load_run(tmp_path / "there")
    assert_same(there.model, here.model, atol=1e-6)
    assert there.clients.index.tolist() == ["park", "lake", "hill"]
