"""The same apps on Flower's Ray simulation, started by `flwr run` as a user would."""

import importlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from federation.fingerprint import fingerprint, source_root
from server.record import RunRecord
from simulations.engine import simulate
from tests.federation.test_plugins import write
from tests.golden import federated
from tests.simulations.test_apps import APPS
from tests.simulations.test_new import project
from tests.support import assert_same, small

BIN = Path(sys.executable).parent


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


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
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        command = "--simulation --insecure --isolation subprocess --host 127.0.0.1"
        self.process = subprocess.Popen(
            [
                BIN / "flower-superlink",
                *command.split(),
                "--port",
                str(http),
                "--control-api-address",
                f"127.0.0.1:{control}",
            ],
            cwd=cwd or folder / "empty",
            env=self.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                if httpx.get(f"http://127.0.0.1:{http}/health").is_success:
                    return
            except httpx.HTTPError:
                time.sleep(0.2)
        raise TimeoutError("the SuperLink did not start")

    def run(self, app, config, nodes=2):
        """Runs an app to its end; returns what was printed."""
        federation = f"num-supernodes={nodes} client-resources-num-cpus=1"
        done = subprocess.run(
            [
                BIN / "flwr",
                "run",
                app,
                "--stream",
                "--run-config",
                config,
                "--federation-config",
                federation,
            ],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        return done.stdout + done.stderr

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.process.terminate()
        self.process.wait(timeout=30)


@pytest.fixture(scope="module")
def superlink(tmp_path_factory):
    with SuperLink(tmp_path_factory.mktemp("ray")) as link:
        yield link


def toml(settings):
    return " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())


@pytest.mark.parametrize(
    "special",
    [
        "local-moml, carried, exact",
        "pfedme",
        {"method": "fedavg"},
        {"method": "local-moml", "merge": "median", "clip": 0.1},
    ],
    ids=lambda special: (
        special if isinstance(special, str) else "-".join(map(str, special.values()))
    ),
)
def test_vectorized_sequential_and_ray_give_the_same_model_and_cohorts(
    superlink, tmp_path, special
):
    golden = isinstance(special, str)
    longer = {"num_rounds": 10, "checkpoint_every": 4}
    e = small(**(federated.SETTINGS[special] if golden else special | longer))
    for engine in ("vectorized", "sequential"):
        simulate(e, tmp_path / engine, engine=engine)
    changed = {k: v for k, v in e.to_config().items() if k not in ("out", "resume")}
    printed = superlink.run(source_root(), toml(changed | {"out": str(tmp_path / "ray")}), nodes=3)
    assert "roster: 20 clients on 3 nodes, all running this source" in printed
    assert "% before personalization" in printed, printed
    records = [RunRecord.open(tmp_path / name) for name in ("vectorized", "sequential", "ray")]
    models = [record.load_checkpoint().model for record in records]
    assert_same(models[1], models[0], atol=1e-5)
    assert_same(models[2], models[0], atol=1e-5)
    cohorts = [[row.get("cohort") for row in record.rows()] for record in records]
    assert cohorts[0] == cohorts[1] == cohorts[2]
    assert len(cohorts[0][-1]) == 4
    found = [record.results for record in records]
    for key in ("accuracy", "accuracy-own"):
        if found[0][key] is None:
            assert found[2][key] is None
        else:
            # One query row more or less of one client: 1/10/20.
            assert found[2][key] == pytest.approx(found[0][key], abs=0.0051)
    if golden:
        assert federated.elsewhere(special, tmp_path / "ray") == []


def test_sites_exchange_estimates(superlink, tmp_path):
    kinds = (("molar", "held-out loss", {}), ("molar-bandit", "regret", {"num_rounds": 8}))
    for method, shown, special in kinds:
        e = small(method=method, dataset="sparse-linear", num_clients=7, **special)
        expected = simulate(e, tmp_path / method)
        out = tmp_path / f"{method}-ray"
        changed = {k: v for k, v in e.to_config().items() if k not in ("out", "resume")}
        printed = superlink.run(source_root(), toml(changed | {"out": str(out)}), nodes=3)
        assert f"7 sites, {shown}" in printed, printed
        found = RunRecord.open(out).results
        for column in expected["clients"]:
            here, there = expected["clients"][column], found["clients"][column]
            np.testing.assert_allclose(there, here, rtol=1e-10, err_msg=column)
        coef = np.ravel(found["shared"]["coef"])
        np.testing.assert_allclose(coef, np.ravel(expected["shared"]["coef"]), rtol=1e-10)


def test_sites_take_turns(superlink, tmp_path):
    bandit = {"method": "meta-ban", "dataset": "linear-groups", "num_clients": 5}
    e = small(**bandit, num_rounds=9, meta_steps=2)
    simulate(e, tmp_path / "here")
    changed = {k: v for k, v in e.to_config().items() if k not in ("out", "resume")}
    out = tmp_path / "ray"
    printed = superlink.run(source_root(), toml(changed | {"out": str(out)}), nodes=2)
    assert "5 sites, regret" in printed, printed
    one, other = (RunRecord.open(folder).rows() for folder in (tmp_path / "here", out))
    assert [row["arm"] for row in other] == [row["arm"] for row in one]


def test_noise_is_secret_on_nodes(superlink, tmp_path):
    e = small(privacy="local", clip=0.1, noise_multiplier=0.5)
    expected = simulate(e, tmp_path / "vectorized")
    changed = {k: v for k, v in e.to_config().items() if k not in ("out", "resume")}
    printed = superlink.run(source_root(), toml(changed | {"out": str(tmp_path / "ray")}))
    assert "% before personalization" in printed, printed
    one, other = (RunRecord.open(tmp_path / name) for name in ("vectorized", "ray"))
    assert other.results["epsilon"] == expected["epsilon"]
    asked = (tmp_path / "ray" / "clients-asked.txt").read_text().splitlines()
    assert [line.split() for line in asked] == [
        [str(client) for client in row["cohort"]] for row in other.rows()[1:]
    ]
    key = "dense0.weight"
    apart = one.load_checkpoint().model[key] - other.load_checkpoint().model[key]
    # Four rounds' noise, each of deviation 0.05 on a mean of 4 updates, and on both sides.
    noise = 0.05 / 2 * 8**0.5
    assert 0.7 * noise < float(apart.std()) < 1.5 * noise


def test_a_preset_runs_and_goes_on(superlink, tmp_path):
    # `flwr run` takes either a file or settings, so the rest of the preset is typed out here.
    preset = source_root() / "simulations" / "presets" / "cross_silo.toml"
    text = preset.read_text() + f'out = "{tmp_path}/run"\nlocal-steps = 1\n'
    mine = tmp_path / "mine.toml"
    for rounds in (2, 4):
        mine.write_text(text.replace("num-rounds = 100", f"num-rounds = {rounds}"))
        printed = superlink.run(source_root(), str(mine))
        assert "% before personalization" in printed, printed
        text = text.replace("out =", "resume =")
    record = RunRecord.open(tmp_path / "run")
    assert [row["round"] for row in record.rows()] == [0, 1, 2, 3, 4]
    assert record.results["own-clients"] == 10
    assert len(list((tmp_path / "run" / "memory").glob("*/client-*"))) == 10


def test_a_project_runs_as_in_one_process(superlink, tmp_path, engram, monkeypatch, plug_ins):
    folder = project(engram, monkeypatch)
    assert engram("run", "--out=here")[0] == 0
    printed = superlink.run(folder, toml({"out": str(tmp_path / "there")}))
    assert "roster: 6 clients on 2 nodes, all running this source" in printed, printed
    one, other = (RunRecord.open(path) for path in (folder / "here", tmp_path / "there"))
    assert_same(other.load_checkpoint().model, one.load_checkpoint().model, atol=1e-6)
    losses = [record.results["clients"]["loss"] for record in (one, other)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-6)
    # Both say which plug-in, by the same digest, though `flwr run` has packed and unpacked it.
    assert other.config["sources"] == one.config["sources"]


@pytest.mark.network  # and of the same, without Ray: tests/simulations/test_apps.py
def test_an_app_of_a_users_own(superlink, tmp_path, monkeypatch, plug_ins):
    import engram

    write(tmp_path / "app" / "mine" / "__init__.py", "")
    write(tmp_path / "app" / "mine" / "apps.py", APPS)
    project = '[project]\nname = "mine"\nversion = "1.0.0"\n[tool.uv]\npackage = false\n'
    components = 'serverapp = "mine.apps:server"\nclientapp = "mine.apps:client"\n'
    app = f'[tool.flwr.app]\npublisher = "me"\n[tool.flwr.app.components]\n{components}'
    config = '[tool.flwr.app.config]\nout = ""\nnum-rounds = 1\n'
    write(tmp_path / "app" / "pyproject.toml", project + app + config)
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
    for room in ("engram", "federation", "client", "strategies", "server"):
        shutil.copytree(source_root() / room, decoy / room)
    with (decoy / "client" / "app.py").open("a") as file:
        file.write("\n# an older state\n")
    with SuperLink(tmp_path, decoy) as link:
        printed = link.run(source_root(), toml({"out": str(tmp_path / "run")}))
    lines = [line for line in printed.splitlines() if "engram: 0 of 20 clients" in line]
    assert lines, printed
    assert re.search(rf"node \d+ cannot .*: this node runs [0-9a-f]{{16}} from {decoy}", lines[0])
    assert f"but the server runs {fingerprint()}" in lines[0]
    assert not (tmp_path / "run").exists()
