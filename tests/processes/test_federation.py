"""Real processes: the same app over gRPC gives the same model, whatever happens to them."""

import contextlib
import json
import re
import socket
import threading

import numpy as np
import pandas as pd
import psutil
import pytest

from benchmarks.chaos import chaos, plan
from engram.client.disk_memory import DiskStore
from engram.data.load_federation import federated_data
from engram.runs.record import RunRecord
from engram.server.status import members, participation
from engram.settings.errors import RunStopped
from engram.settings.experiment import Experiment, read_by
from engram.settings.fingerprint import source_root
from engram.settings.method_for_data import server_side
from engram.settings.plugins import add_plugins, load_plugins
from engram.settings.settings_files import read_settings
from engram.simulations.deployed import run_deployed
from engram.simulations.engine import simulate
from engram.simulations.loopback import LoopbackFederation
from tests.golden import federated
from tests.processes.support import free_port
from tests.support import assert_same, write_plug_in

pytestmark = pytest.mark.processes

CLIENTS = 3


def settings(**special):
    own = {
        "num-clients": CLIENTS,
        "clients-per-round": CLIENTS,
        "min-clients": CLIENTS,
        "timeout": 120.0,
        "rows-per-class": 20,
        "test-rows-per-class": 8,
        "hidden": "16",
        "num-rounds": 4,
        "eval-every": 2,
        "checkpoint-every": 2,
    }
    method = special.get("method", "local-moml")
    return Experiment.from_config(read_by(method, own) | special)


def run(federation, experiment, folder):
    """Runs it, and returns its record; whatever went wrong on the way fails the test."""
    trouble = []
    run_deployed(
        experiment,
        folder,
        federation.server,
        control=federation.control,
        on_trouble=trouble.append,
    )
    assert not trouble
    return RunRecord.open(folder)


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Three resident nodes, for tests that leave them as they were."""
    with LoopbackFederation(tmp_path_factory.mktemp("shared") / "fed", clients=CLIENTS) as shared:
        yield shared


@pytest.mark.parametrize(
    ("nodes", "insecure", "special"),
    [
        ("engram", False, "local-moml, carried, exact"),
        ("engram", True, "pfedme, median, server-mix"),
        ("stock", False, {"memory": "carry", "num-rounds": 2}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_over_grpc_ends_at_the_vectorized_engines_model(tmp_path, nodes, insecure, special):
    golden = isinstance(special, str)  # 20 clients, of which each node has every third one
    count = 2 if nodes == "stock" else CLIENTS  # Flower's start a process for each message
    near = {"timeout": 120.0, "min_clients": 4}
    experiment = federated.experiment(special, **near) if golden else settings(**special)
    found = simulate(experiment, tmp_path / "here")
    options = {"nodes": nodes, "insecure": insecure}
    with LoopbackFederation(tmp_path / "fed", clients=count, **options) as federation:
        record = run(federation, experiment, tmp_path / "there")
        online = members(federation.server, control=federation.control)
    expected = RunRecord.open(tmp_path / "here")
    model = expected.load_checkpoint().model
    assert_same(record.load_checkpoint().model, model, atol=1e-5)
    assert record.results["accuracy"] == pytest.approx(found["accuracy"], abs=0.0051)
    if golden:
        assert federated.elsewhere(special, tmp_path / "there") == []
    assert participation(record.rows()) == participation(expected.rows())
    assert all(row["left-out"] == 0 for row in record.rows()[1:])
    row = record.rows()[-1]
    asked = {client % count for client in row["cohort"]}
    assert row["bytes-sent"] > len(asked) * 4 * sum(leaf.numel() for leaf in model.values())
    assert row["seconds-training"] > 0
    assert [member.status for member in online] == ["online"] * count
    if not insecure:
        assert {member.name for member in online} == {f"client-{i}" for i in range(count)}
    if server_side(experiment, federated_data(experiment).kind)[1].kept:
        trained = {client: row["round"] for row in record.rows()[1:] for client in row["cohort"]}
        for client, last in trained.items():
            own = tmp_path / "fed" / f"client-{client % count}" / "state" / "memory"
            store = DiskStore(own / record.config["training"])
            assert list(store.versions(client))[-1] == last


def test_dead_proxies_in_the_environment_are_not_asked(tmp_path, monkeypatch):
    dead = "http://127.0.0.1:9"  # where nothing listens
    for name in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, dead)
        monkeypatch.setenv(name.upper(), dead)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
    experiment = settings(**{"num-rounds": 2})
    simulate(experiment, tmp_path / "here")
    with LoopbackFederation(tmp_path / "fed", clients=CLIENTS) as federation:
        record = run(federation, experiment, tmp_path / "there")
        online = members(federation.server, control=federation.control)
    expected = RunRecord.open(tmp_path / "here").load_checkpoint().model
    assert_same(record.load_checkpoint().model, expected, atol=1e-5)
    assert [member.status for member in online] == ["online"] * CLIENTS


class Wire:
    """Passes on what is sent to a port, and keeps it."""

    def __init__(self, port):
        self.port, self._to = free_port(), port
        self.connections = []
        self._server = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            near, _ = self._server.accept()
            far = socket.create_connection(("127.0.0.1", self._to))
            self.connections.append(bytearray())
            ways = (near, far, self.connections[-1]), (far, near, bytearray())
            for one, other, kept in ways:
                threading.Thread(target=self._pass, args=(one, other, kept), daemon=True).start()

    @staticmethod
    def _pass(one, other, kept):
        try:
            while data := one.recv(2**16):
                kept += data
                other.sendall(data)
        except OSError:
            pass


def test_grpc_is_what_is_on_the_wire(tmp_path):
    with LoopbackFederation(tmp_path / "fed", clients=1, insecure=True) as federation:
        wire = Wire(federation.fleet)
        federation.kill("client-0")
        path = tmp_path / "fed" / "client-0" / "node.toml"
        lines = read_settings(path) | {"superlink": f"127.0.0.1:{wire.port}"}
        path.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in lines.items()))
        federation.start("client-0")
        special = {"num-clients": 1, "clients-per-round": 1, "min-clients": 1, "num-rounds": 1}
        run(federation, settings(**special), tmp_path / "run")
    # The node looks first whether it should have been told to use TLS.
    (sent,) = (data for data in wire.connections if data.startswith(b"PRI * HTTP/2.0\r\n"))
    for words in (b"application/grpc", b"/flwr.proto.Fleet/PullMessages", b"dense0.weight"):
        assert words in sent


def test_a_node_with_data_of_its_own_trains_on_them_alone(tmp_path):
    from sklearn.datasets import load_digits

    from tests.support import write_npz

    digits = load_digits()
    x, y = digits.images.astype("float32") / 16, digits.target
    special = {"num-rounds": 2, "num-classes": 10, "num-clients": 2, "clients-per-round": 2}
    experiment = settings(**special, **{"min-clients": 2})
    with LoopbackFederation(tmp_path / "fed", clients=2) as federation:
        for client, part in enumerate((y < 5, y >= 4)):
            federation.kill(f"client-{client}")
            own = write_npz(tmp_path / f"own{client}.npz", x=x[part], y=y[part])
            federation.options[f"client-{client}"] = ["--data", own]
            federation.start(f"client-{client}")
        record = run(federation, experiment, tmp_path / "run")
    assert record.results["scored"] == 2
    assert all(row["left-out"] == 0 for row in record.rows()[1:])


@pytest.mark.parametrize("nodes", ["engram", "stock"])
def test_hospitals_exchange_estimates_of_tables_that_stay_with_them(tmp_path, nodes):
    rng = np.random.default_rng(0)
    hospital = np.repeat(["north", "south", "west"], 80)
    x = rng.normal(size=(240, 3))
    y = x @ [1, 2, 3] + 4 * (hospital == "west") * x[:, 0] + rng.normal(size=240)
    frame = pd.DataFrame(x, columns=["age", "dose", "weight"]).assign(hospital=hospital, days=y)
    frame.to_csv(tmp_path / "all.csv", index=False)
    table = {"target-column": "days", "task-column": "hospital", "num-clients": CLIENTS}
    experiment = settings(method="molar", dataset=f"csv:{tmp_path / 'all.csv'}", **table)
    expected = simulate(experiment, tmp_path / "here")
    options = {"nodes": nodes, "insecure": nodes == "stock"}
    count = 2 if nodes == "stock" else CLIENTS
    with LoopbackFederation(tmp_path / "fed", clients=count, **options) as federation:
        if nodes == "engram":  # which bring their own; the coordinator has none
            experiment = experiment.model_copy(update={"dataset": "sparse-linear"})
            for client, name in enumerate(["north", "south", "west"]):
                federation.kill(f"client-{client}")
                own = tmp_path / f"{name}.csv"
                frame[hospital == name].to_csv(own, index=False)
                federation.options[f"client-{client}"] = ["--data", f"csv:{own}"]
                federation.start(f"client-{client}")
        else:
            federation.options = {f"client-{n}": [f'data-dir="{tmp_path}"'] for n in range(count)}
            for client in range(count):
                federation.kill(f"client-{client}")
                federation.start(f"client-{client}")
        record = run(federation, experiment, tmp_path / "there")
    found = record.results
    assert (found["sites"], found["left-out"]) == (CLIENTS, {})
    assert found["shared"]["names"] == ["age", "dose", "weight", "intercept"]
    np.testing.assert_allclose(found["shared"]["coef"], expected["shared"]["coef"], rtol=1e-10)
    for column in ("loss-personal", "loss-own", "loss-shared"):
        np.testing.assert_allclose(
            found["clients"][column], expected["clients"][column], rtol=1e-10
        )
    if nodes == "engram":
        own = tmp_path / "fed" / "client-2" / "state" / "memory"
        memory = DiskStore(own / record.config["training"]).read(2, 1)
        assert sorted(memory) == ["age", "dose", "intercept", "weight"]
        coef, low, high, alone, shared = memory["age"].tolist()
        assert low < coef < high
        assert coef == alone
        assert abs(coef - 5) < 0.5
        assert abs(shared - 1) < 0.5


def test_turns_of_a_bandit_are_those_of_one_process(tmp_path, federation):
    bandit = {"method": "meta-ban", "dataset": "linear-groups", "num-rounds": 10}
    experiment = settings(**bandit, **{"meta-steps": 2})
    simulate(experiment, tmp_path / "here")
    record = run(federation, experiment, tmp_path / "there")
    rows, expected = record.rows(), RunRecord.open(tmp_path / "here").rows()
    for key in ("served", "arm", "groups", "told", "regret"):
        assert [row[key] for row in rows] == [row[key] for row in expected], key
    assert all(row["left-out"] == 0 for row in rows)
    assert all(row["bytes-sent"] > 0 < row["bytes-received"] for row in rows)
    state = federation.server.parent / "client-2" / "state"
    own = state / "memory" / record.config["training"]
    theirs = [row["round"] for row in rows if row["served"] == 2]
    assert sorted(DiskStore(own).versions(2))[-1] == theirs[-1]
    assert_same(
        record.load_checkpoint().model,
        RunRecord.open(tmp_path / "here").load_checkpoint().model,
        atol=1e-9,
    )


def test_a_node_without_the_runs_plug_in_is_left_out_and_named(tmp_path, plug_ins, monkeypatch):
    write_plug_in(tmp_path / "outside.py", "own")
    add_plugins("outside")
    load_plugins()
    experiment = settings(method="own", **{"num-rounds": 1, "min-clients": 2, "timeout": 20.0})
    with LoopbackFederation(tmp_path / "fed", clients=CLIENTS) as federation:
        federation.kill("client-1")
        with monkeypatch.context() as patch:
            patch.setenv("ENGRAM_PLUGINS", "")
            federation.start("client-1")
        record = run(federation, experiment, tmp_path / "run")
    (source,) = record.config["sources"]
    ours, _ = source.split(" with plug-in outside ")
    reason = f"this node runs {ours} from {source_root()}, but the server runs {source}"
    assert reason in record.rows()[1]["absent"]["1"]


def test_work_that_nobody_waits_for_keeps_no_run_waiting(tmp_path):
    alone = {"num-clients": 1, "clients-per-round": 1, "min-clients": 1, "num-rounds": 1}
    with LoopbackFederation(tmp_path / "fed", clients=1) as federation:
        many = {"adapt-steps": 10**5, "hidden": "1024,1024"}  # minutes
        work = {"protocol": "few-shot", "timeout": 6.0, **many}
        with pytest.raises(RunStopped):
            run(federation, settings(**alone, **work), tmp_path / "endless")
        run(federation, settings(**alone), tmp_path / "next")
    said = (tmp_path / "fed" / "logs" / "client-0.log").read_text()
    assert re.search(r"work for run \d+ ended after \d+ s: ", said)  # of its round, or its run


def test_kills_cost_no_memory_and_no_round(tmp_path):
    outcome = chaos(tmp_path, plan(3, 6, seed=1), 6)
    assert outcome.unharmed, outcome
    assert sorted(outcome.kills) == ["client-2", "coordinator", "superlink"]


def test_a_coordinator_killed_before_it_begins_costs_no_attempt(tmp_path, federation):
    killed = []

    def kill():
        superlink = psutil.Process(federation.processes["superlink"].pid)
        while not killed:
            for child in superlink.children(recursive=True):
                with contextlib.suppress(psutil.Error):  # it may have ended
                    if any("flwr-serverapp" in word for word in child.cmdline()):
                        child.kill()
                        killed.append(child.pid)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    there = run(federation, settings(), tmp_path / "there")
    assert killed
    assert len(there.rows()) == 5


def test_buffered_rounds_wait_for_no_node_and_a_late_answer_counts(tmp_path, federation):
    buffered = {"method": "ditto"}
    whole = settings(**buffered, **{"buffer-size": CLIENTS})
    simulate(settings(method="ditto"), tmp_path / "here")
    # A buffer for all of them makes synchronous rounds.
    there = run(federation, whole, tmp_path / "whole")
    here = RunRecord.open(tmp_path / "here")
    assert_same(there.load_checkpoint().model, here.load_checkpoint().model, atol=1e-5)
    assert [row["staleness"] for row in there.rows() if row["round"]] == [0, 0, 0, 0]

    node = psutil.Process(federation.processes["client-1"].pid)
    own = {"buffer-size": 2, "min-clients": 2, "num-rounds": 40, "eval-every": 40}

    def on_round(row):
        if row["round"] == 3:
            node.suspend()
        if row["round"] == 15:
            node.resume()

    run_deployed(
        settings(**buffered, **own),
        tmp_path / "some",
        federation.server,
        control=federation.control,
        on_round=on_round,
    )
    rows = RunRecord.open(tmp_path / "some").rows()[1:]
    assert [row["round"] for row in rows] == list(range(1, 41))
    assert all(row["ms"] < 10_000 for row in rows)  # nobody waited for the one that was stopped
    assert {tuple(row["cohort"]) for row in rows[8:15]} == {(0, 2)}
    back = next(row for row in rows[15:] if 1 in row["cohort"])
    assert back["staleness"] >= 2  # the mean of one of six rounds before, at least, and of two
    assert back["left-out"] == 0
