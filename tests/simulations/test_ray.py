"""The same apps on Flower's Ray simulation, started by `flwr run` as a user would."""

import contextlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import httpx
import numpy as np
import pytest

from engram.runs.run import Run
from engram.settings.fingerprint import fingerprint, source_root
from engram.simulations.engine import simulate
from tests.cli.test_new import project
from tests.golden import federated
from tests.link.wire.processes import PATIENCE, free_port
from tests.processes.support import wait_for
from tests.settings.test_plugins import write
from tests.simulations.test_apps import APPS
from tests.support import assert_same, small

pytestmark = pytest.mark.processes

BIN = Path(sys.executable).parent


class SuperLink:
    """A local simulation SuperLink of our own: `flwr run` attaches to whatever it finds."""

    def __init__(self, folder, cwd=None):
        http, control = free_port(), free_port()
        # A Ray worker's path begins with the folder it was started in: one that is empty.
        (folder / "empty").mkdir()
        self.env = os.environ | {
            "FLWR_HOME": str(folder / "home"),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(http),
            "FLWR_LOCAL_CONTROL_API_PORT": str(control),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_ADDRESS": "local",  # Flower would join any cluster that runs on this machine
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        command = f"--simulation --insecure --isolation subprocess --host 127.0.0.1 --port {http}"
        words = [*command.split(), "--control-api-address", f"127.0.0.1:{control}"]
        how = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": self.env}
        self.process = subprocess.Popen(
            [BIN / "flower-superlink", *words], cwd=cwd or folder / "empty", **how
        )

        def answers():
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(f"http://127.0.0.1:{http}/health").is_success

        wait_for(answers, "the SuperLink")

    def run(self, app, config, nodes=2):
        """Runs an app to its end; returns what was printed."""
        federation = f"num-supernodes={nodes} client-resources-num-cpus=1"
        words = ["run", app, "--stream", "--run-config", config, "--federation-config", federation]
        how = {"capture_output": True, "text": True, "timeout": PATIENCE}
        done = subprocess.run([BIN / "flwr", *words], env=self.env, check=False, **how)
        return done.stdout + done.stderr

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.process.terminate()
        self.process.wait(PATIENCE)


@pytest.fixture(scope="module")
def superlink(tmp_path_factory):
    with SuperLink(tmp_path_factory.mktemp("ray")) as link:
        yield link


def toml(settings):
    return " ".join(f"{key}={_quoted(value)}" for key, value in settings.items())


def _quoted(value):
    """Returns a value for Flower, which reads no escaped quotes."""
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)


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


@pytest.fixture(scope="module")
def preset(superlink, tmp_path_factory):
    """What was printed by a run of two rounds of a preset, which is in the folder ``run``."""
    folder = tmp_path_factory.mktemp("preset")
    text = (source_root() / "simulations" / "presets" / "cross_silo.toml").read_text()
    text = text.replace("num-rounds = 100", "num-rounds = 2")
    settings = tomllib.loads(text) | {"local-steps": 1}
    beside = {"engram": json.dumps(settings), "out": f"{folder}/run"}
    return superlink.run(source_root(), toml(beside)), folder / "run"


@pytest.fixture(scope="module")
def ray(superlink, preset, tmp_path_factory):
    """All experiments in one run, and the preset for two more rounds; what was printed, where."""
    folder = tmp_path_factory.mktemp("several")
    configs = [e.to_config() | {"out": f"{folder}/{name}"} for name, e in EXPERIMENTS.items()]
    more = Run.open(preset[1]).config["settings"]
    configs.append(more | {"num-rounds": 4, "out": "", "resume": str(preset[1])})
    return run_several(superlink, folder, configs), folder


def write_app(folder, module, config):
    """Writes the pyproject.toml of an app whose components a module has."""
    project = '[project]\nname = "mine"\nversion = "1.0.0"\n[tool.uv]\npackage = false\n'
    components = f'serverapp = "{module}:server"\nclientapp = "{module}:client"\n'
    app = f'[tool.flwr.app]\npublisher = "me"\n[tool.flwr.app.components]\n{components}'
    write(folder / "pyproject.toml", f"{project}{app}[tool.flwr.app.config]\n{config}")


def run_several(superlink, folder, configs):
    """Does several experiments in one run of Flower; returns what was printed."""
    write_app(folder / "app", "several", 'experiments = ""\n')
    shutil.copy(Path(__file__).with_name("several.py"), folder / "app")
    (folder / "experiments.json").write_text(json.dumps(configs))
    config = toml({"experiments": f"{folder}/experiments.json"})
    return superlink.run(folder / "app", config, nodes=3)


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


def test_a_preset_runs_and_goes_on(preset, ray):
    printed, folder = preset
    assert "(global model: " in printed, printed
    record = Run.open(folder)
    assert [row["round"] for row in record.rows()] == [0, 1, 2, 3, 4], ray[0]
    assert len(list((folder / "memory").glob("*/client-*"))) == 10


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


def test_nodes_that_run_something_else_are_named_at_the_roster_query(tmp_path):
    # An older clone of this very platform, in the folder that the SuperLink was started in.
    decoy = tmp_path / "decoy"
    shutil.copytree(source_root() / "engram", decoy / "engram")
    with (decoy / "engram" / "client" / "app.py").open("a") as file:
        file.write("\n# an older state\n")
    with SuperLink(tmp_path, decoy) as link:
        printed = link.run(source_root(), toml({"out": str(tmp_path / "run")}))
    lines = [line for line in printed.splitlines() if "engram: 0 of 20 clients" in line]
    assert lines, printed
    assert re.search(rf"node \d+ cannot .*: this node runs [0-9a-f]{{16}} from {decoy}", lines[0])
    assert f"but the server runs {fingerprint()}" in lines[0]
    assert not (tmp_path / "run").exists()
