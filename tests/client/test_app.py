"""The ClientApp as nodes run it: memories and replies that outlive it, data of its own."""

import re
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import engram
from engram.client import app as module
from engram.client.app import answer_question
from engram.client.disk_memory import DiskStore
from engram.client.training_description import read_training
from engram.client.training_folders import kept
from engram.core.slots import flat
from engram.core.standardization import Units
from engram.data import loading
from engram.data.schema.columns import Kind
from engram.data.source import FILES
from engram.settings import model_and_evaluation as of_model
from engram.settings.errors import REFUSED, Refused
from engram.settings.fingerprint import fingerprint, source_root
from engram.sites.policy import keep_policy
from engram.wire.messages import EVALUATE, TRAIN, NodeContext, Question
from engram.wire.roster import read_entry
from engram.wire.wire import (
    ARRAYS,
    CLIENTS,
    CONFIG,
    ROSTER_QUERY,
    units_entries,
)
from tests.samples import entry
from tests.sites.budgets import TRAINING, answer_of, at, model_for, refusal
from tests.support import assert_same, initial_model, small, trainer, write_npz

pytestmark = pytest.mark.usefixtures("afresh")

CARRY = {"memory": "carry"}


def ask(kind, content, node_config, **settings):
    """What the app answers; each time in another message, as when it comes again."""
    return answer_of(small(**settings), kind, content, **node_config)


def train(node_config, *, server_round=1, durable=0, clients=(0, 3), model=None, **settings):
    e = small(**settings)
    content = model_for(e, server_round, clients, model=model, durable=durable)
    return answer_of(e, TRAIN, content, **node_config)


def test_a_nodes_own_memory_budget_counts_whatever_the_run_says():
    reply = train({"memory-budget": 1e-6}, memory_budget=100.0)
    assert "9.99e-07 GiB are allowed (memory-budget)" in reply.error.reason


def test_a_node_logs_a_line_a_round(tmp_path, warnings_of_engram):
    node = {"state": str(tmp_path)}
    model = initial_model(trainer(small()))
    train(node, server_round=3, model=model)
    content = {ARRAYS: flat(model), CONFIG: {"training": TRAINING}}
    ask(EVALUATE, content, node)
    ask(TRAIN, {}, node)
    lines = [record for record in warnings_of_engram.records if hasattr(record, "fields")]
    trained, scored, refused = lines
    line = r"run 1, local-moml, round 3: trained clients \[0, 3\] on \d+ rows in \d+\.\d\d s, "
    assert re.fullmatch(line + r"train-loss .*; \d+ bytes received, \d+ sent", trained.message)
    told = trained.fields
    assert (told["run"], told["round"], told["clients"]) == (1, 3, [0, 3])
    model_bytes = 4 * sum(leaf.numel() for leaf in flat(model).values())
    assert model_bytes <= min(told["received"], told["sent"])
    assert scored.fields["metrics"].keys() >= {"accuracy"}
    assert "scored clients" in scored.message
    assert "accuracy 0." in scored.message
    assert "must hold slots" in refused.message
    assert refused.levelname == "WARNING"


def test_a_simulations_nodes_log_no_line_each(tmp_path, warnings_of_engram):
    train({})
    assert not warnings_of_engram.messages


def test_a_node_refuses_to_join_a_run_that_it_cannot_bear():
    """100 networks of 55,050 parameters, three times in float32, take 0.06 GiB."""
    for given, budget, says in [
        ({"fedem.components": 100}, 0.01, "a client of fedem needs .* lower fedem.components"),
        ({"fedem.components": 10**5}, 0, "fedem.components must be less than or equal to 100"),
        ({"batch-size": 2**63}, 0, "batch-size must be less than or equal to 1000000"),
        ({"fedem.eta": 1e308}, 0, "fedem.eta must be less than or equal to 1e.30"),
    ]:
        with entry(given):
            config = small(method="fedem", hidden="200,200").to_config() | given
            question = Question(7, ROSTER_QUERY, {})
            node = {"partition-id": 0, "num-partitions": 1, "memory-budget": budget}
            assert re.search(says, refusal(answer_question(question, NodeContext(1, node, config))))


def test_nodes_of_one_process_share_what_does_not_depend_on_them():
    for node in (0, 1):
        found = read_entry(
            ask(ROSTER_QUERY, {}, {"partition-id": node, "num-partitions": 2}).content
        )
        assert set(found.clients) == set(range(node, 20, 2))
    assert module._node.cache_info().misses == 1


def test_a_node_of_another_source_names_both_before_it_reads_the_settings():
    theirs = "0123456789abcdef with plug-in hospitals 89abcdef01234567"
    reply = of_outsiders({"fingerprint": theirs})
    ours = f"this node runs {fingerprint()} from {source_root()}"
    assert reply.error.code == REFUSED
    assert reply.error.reason == f"{ours}, but the server runs {theirs}"


def test_a_node_says_why_a_plug_in_cannot_be_imported(monkeypatch):
    monkeypatch.setenv("ENGRAM_PLUGINS", "/srv/nowhere")
    assert of_outsiders({}).error.reason.startswith("plug-in nowhere cannot be imported: Module")


def of_outsiders(config):
    """What the app answers to a run of a method that is not known here."""
    question = Question(7, ROSTER_QUERY, {CONFIG: config})
    node = {"partition-id": 0, "num-partitions": 1}
    return answer_question(
        question, NodeContext(1, node, {"method": "outside", "outside.eta": 0.1})
    )


def model_of(reply):
    assert not reply.error, reply.error
    return reply.content[ARRAYS]


def test_memories_outlive_the_process_under_their_training(tmp_path):
    node = {"state": str(tmp_path)}
    first = model_of(train(node, **CARRY))
    again = model_of(train(node, server_round=2, durable=1, model=first, **CARRY))
    module._node.cache_clear()  # another process
    assert_same(model_of(train(node, server_round=2, durable=1, model=first, **CARRY)), again)
    third = train(node, server_round=3, durable=2, model=again, **CARRY)
    assert not third.error
    found = [(each.training, each.client, each.server_round) for each in kept(tmp_path / "memory")]
    assert found == [(TRAINING, client, 3) for client in (0, 3)]


def test_the_same_message_again_gives_the_same_reply(tmp_path):
    node = {"state": str(tmp_path)}
    first = model_of(train(node, **CARRY))
    module._node.cache_clear()  # as if the node had died before its reply was kept
    assert_same(model_of(train(node, **CARRY)), first)


def test_what_is_kept_is_encrypted_where_there_is_a_key(tmp_path):
    from engram.client.encrypted_file import new_key, read_key

    new_key(tmp_path / "key")
    node = {"state": str(tmp_path / "s"), "memory-key": str(tmp_path / "key")}
    first = model_of(train(node, **CARRY))
    plain = first["model/dense0.weight"].numpy().tobytes()[:64]
    files = [path for path in (tmp_path / "s").rglob("*") if path.is_file()]
    assert len(files) == 5  # two memories, the settings, the log, and its lock
    assert not any(plain in path.read_bytes() for path in files)
    store = DiskStore(tmp_path / "s" / "memory" / TRAINING, key=read_key(tmp_path / "key"))
    assert store.read(3, 1)
    assert_same(model_of(train(node, **CARRY)), first)


def test_a_node_with_its_own_data_hosts_one_client_with_all_of_them(tmp_path):
    rng = np.random.default_rng(0)
    own = write_npz(tmp_path / "own.npz", x=rng.normal(size=(90, 3)), y=rng.integers(0, 2, 90))
    node = {"data": own, "partition-id": 4, "num-partitions": 9}
    for began in (9, 4):  # clients of the run, to which this one may have come later
        change = {"num_clients": began, "clients_per_round": 4}
        reply = ask(ROSTER_QUERY, {}, node, num_classes=3, **change)
        entry = read_entry(reply.content)
        assert entry.clients == {4: 43}  # 36 are test rows, and 11 held out for validation
        assert entry.kind == Kind("float32[3]", 3)


def test_a_node_trains_in_the_run_s_units_and_notes_them(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 3)) * [1, 1000, 10] + [0, 0, 300]
    np.savetxt(tmp_path / "own.csv", rows, delimiter=",", header="a,b,y", comments="")
    node = {"data": f"csv:{tmp_path}/own.csv", "state": str(tmp_path / "state")}
    settings = {"method": "fedavg", "task": "regression", "num_clients": 1, "clients_per_round": 1}
    settings |= {"partition": "natural", "model": "linear"}
    told = read_entry(ask(ROSTER_QUERY, {}, node, **settings).content).told
    units = Units(told.inputs.standard(), told.targets.standard())
    model = {"model": {"dense0.weight": torch.zeros(1, 2), "dense0.bias": torch.zeros(1)}}
    config = {CLIENTS: [0], "training": TRAINING, **units_entries(units)}
    content = {ARRAYS: flat(model), CONFIG: config}
    found = model_of(ask(TRAIN, content, node, **settings))
    assert found["model/dense0.weight"].abs().max() < 2  # of numbers around 0, with deviation 1
    assert read_training(tmp_path / "state" / "memory" / TRAINING).kind.units == units


@pytest.mark.parametrize("method", ["fedavg", "molar"])
def test_names_in_the_data_stay_on_a_machine_of_its_own(tmp_path, method):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 3)), np.tile([0, 1], 100)
    task = np.repeat(["park", "elm"], 100)
    settings = {"method": method, "num_clients": 2}
    settings |= {"dataset": write_npz(tmp_path / "a.npz", x=x, y=y, task=task)}
    if method == "fedavg":
        settings |= {"partition": "natural", "clients_per_round": 2, "model": "linear"}
    beside = ask(ROSTER_QUERY, {}, {}, **settings)
    assert read_entry(beside.content).names == {0: "elm", 1: "park"}
    node = {"state": str(tmp_path / "state"), "data-dir": str(tmp_path)}
    apart = ask(ROSTER_QUERY, {}, node, **settings)
    assert read_entry(apart.content).names == {}
    if method == "fedavg":
        few = {"protocol": "few-shot", "adapt_shots": 90}
        reply = ask(ROSTER_QUERY, {}, node, **settings, **few)
        assert "clients [0, 1]: it has 40 test rows, not more than" in reply.error.reason


def test_a_node_reads_the_clients_that_it_hosts_of_a_data_set_by_name(tmp_path, plug_ins):
    seen = []

    @engram.data
    def sites(client):
        seen.append(client)
        rng = np.random.default_rng(client)
        return rng.normal(size=(20, 3)), np.arange(20) % 2

    node = {"state": str(tmp_path), "partition-id": 1, "num-partitions": 3}
    settings = {"dataset": "sites", "partition": "natural", "num_clients": 4, "model": "linear"}
    entry = read_entry(ask(ROSTER_QUERY, {}, node, **settings).content)
    assert (entry.clients, entry.own_data, seen) == ({1: 10}, False, [1])
    own = node | {"data": "sites"}
    entry = read_entry(ask(ROSTER_QUERY, {}, own, **settings).content)
    assert (entry.clients, entry.own_data, seen) == ({1: 10}, True, [1, 1])


def test_what_a_node_cannot_read_by_name_stays_in_its_log(tmp_path, plug_ins, warnings_of_engram):
    @engram.data
    def secret(client):
        raise ValueError("Jane Doe")

    settings = {"dataset": "secret", "partition": "natural"}
    reply = ask(ROSTER_QUERY, {}, {"state": str(tmp_path)}, **settings)
    assert reply.error.reason == "this node's data cannot be used: its log says why"
    assert "dataset secret cannot be read: ValueError: Jane Doe" in warnings_of_engram.text


def test_a_coordinator_opens_no_file_of_a_node(tmp_path):
    rng = np.random.default_rng(0)
    own = write_npz(tmp_path / "own.npz", x=rng.normal(size=(900, 3)), y=rng.integers(0, 2, 900))
    settings = {"dataset": own, "partition": "iid", "model": "linear", "data_dir": "/"}
    for node in ({"state": str(tmp_path), "data-dir": "/nowhere"}, {"state": str(tmp_path / "s")}):
        reply = ask(ROSTER_QUERY, {}, node, **settings)
        assert reply.error.code == REFUSED
        assert "is not in this node's data-dir" in reply.error.reason
    for node in ({}, {"state": str(tmp_path / "s"), "data-dir": str(tmp_path)}):
        assert not ask(ROSTER_QUERY, {}, node, **settings).error


SECRET = "Jane Doe"
OWN = ["state/replies/a", "state/memory/a.npz", "client/client.key", "key", "policy.toml"]


def test_a_coordinator_reads_none_of_a_nodes_own_files(tmp_path, monkeypatch):
    """Whichever folder its data are in, and whatever they are said to be."""
    for name in OWN:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{SECRET},x\n1,2\n" * ("/" in name))
    (tmp_path / "policy.toml").write_text(f"# {SECRET}\nsteps = 1000\n")
    (tmp_path / "key").write_text("0" * 64)
    (tmp_path / "key").chmod(0o600)
    places = {"state": "state", "identity": "client", "memory-key": "key", "policy": "policy.toml"}
    node = {key: str(tmp_path / place) for key, place in places.items()}

    def read(opening):
        raise Refused(f"{opening.experiment.source} is read")

    monkeypatch.setattr(module, "host_of", read)
    link = tmp_path / "state" / "data" / "link"
    link.parent.mkdir()
    for own, place in product(OWN, ("", "state", "state/memory", "client")):
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / own)
        folder = {"data-dir": str(tmp_path / place)} if place else {}
        for kind, path in product(FILES, (tmp_path / own, link)):
            with entry(own, place, kind, path):
                settings = {"dataset": f"{kind}:{path}", "partition": "iid", "model": "linear"}
                reply = ask(ROSTER_QUERY, {}, node | folder, **settings)
                inside = place == "state/memory" and own == "state/memory/a.npz"
                words = "is not in this node's data-dir|is among the node's own files"
                assert re.search("is read" if inside else words, refusal(reply))


def test_columns_of_a_file_that_a_run_names_stay_on_the_node(tmp_path, warnings_of_engram):
    (tmp_path / "a.csv").write_text(f"{SECRET},x\n1,2\n")
    settings = {"dataset": f"csv:{tmp_path / 'a.csv'}", "partition": "iid", "model": "linear"}
    node = {"state": str(tmp_path / "state"), "data-dir": str(tmp_path)}
    for method in ("fedavg", "molar", "meta-ban"):
        own = settings if method == "fedavg" else {"dataset": settings["dataset"]}
        reply = ask(ROSTER_QUERY, {}, node, method=method, **own)
        assert reply.error.reason == "this node's data cannot be used: its log says why"
    assert SECRET in warnings_of_engram.text


@pytest.fixture
def downloads(monkeypatch):
    """Whether torchvision is asked to download, call by call; nothing is there."""
    asked = []

    def none(root, download, **part):
        asked.append(download)
        raise RuntimeError("not found")

    kinds = SimpleNamespace(MNIST=none, FashionMNIST=none, CIFAR10=none, CIFAR100=none)
    torchvision = SimpleNamespace(datasets=kinds)
    monkeypatch.setattr(loading, "torchvision", lambda: torchvision)
    return asked


def test_nothing_is_downloaded_unless_the_policy_allows_it(tmp_path, downloads):
    datasets = ["mnist", "fashion-mnist", "cifar10", "cifar100", "cifar100-coarse"]
    for dataset, method in product(datasets, ["fedavg", "meta-ban"]):
        with entry(dataset, method):
            (folder := tmp_path / f"{dataset}-{method}").mkdir()
            downloads.clear()
            settings = {"dataset": dataset, "method": method}

            def said(settings=settings, folder=folder, **data):
                return refusal(ask(ROSTER_QUERY, {}, at(folder) | data, **settings))

            told = said()
            assert f"{dataset} is not in {folder / 'data'}, and this site's policy" in told
            assert "or set downloads = true in the policy" in told
            assert downloads == [False]
            if method == "fedavg":  # a data set that the site has named itself
                assert "cannot be downloaded" in said(data=dataset)
                assert downloads == [False, False, True]
            downloads.clear()
            (folder / "policy.toml").write_text("downloads = true")
            assert said()
            assert downloads == [False, True]


def test_the_policy_is_asked_before_a_metric_is_looked_up(tmp_path, monkeypatch):
    looked = []
    known = of_model.registered

    def registered(key, names, *given, **how):
        looked.append(key)
        return known(key, names, *given, **how)

    monkeypatch.setattr(of_model, "registered", registered)
    node = {"partition-id": 0, "num-partitions": 1}
    node |= {"state": str(tmp_path), "policy": str(tmp_path)}
    kinds = (ROSTER_QUERY, TRAIN, EVALUATE)
    words = {"molar": "method must be molar, got", "local*": "metrics must be"}
    for allowed, expected in words.items():
        (tmp_path / "policy.toml").write_text(f'methods = ["{allowed}"]')
        keep_policy(tmp_path, tmp_path, accept=True)
        for kind in kinds:
            question = Question(7, kind, {})
            settings = small().to_config() | {"metrics": "accuracy,nosuch"}
            reply = answer_question(question, NodeContext(1, node, settings))
            assert expected in reply.error.reason
        assert bool(looked) == (allowed == "local*")


def test_a_coordinator_has_nothing_downloaded_by_a_node(tmp_path):
    node = {"state": str(tmp_path)}
    reply = ask(ROSTER_QUERY, {}, node, dataset="hf:someone/rows", partition="iid")
    assert reply.error.code == REFUSED
    words = "hf:someone/rows is not this node's: start it with --data hf:someone/rows"
    assert reply.error.reason == words


def test_what_is_wrong_with_a_node_is_one_line_for_the_server():
    for node, says in [
        ({"partition-id": "x"}, "a node needs --node-config"),
        ({"data": "npz:/nowhere.npz"}, "/nowhere.npz cannot be read"),
        ({"memory-limit": -1}, "memory-limit must be a number, 0 or more, got -1"),
        ({"memory-limit": float("nan")}, "memory-limit must be a number, 0 or more, got nan"),
        ({"memory-days": 10**400}, "memory-days must be a number, 0 or more, got <integer"),
        ({"partition-id": 10**5000}, "to know which clients it hosts, got <integer of"),
        ({"state": 7}, "state must be text, got 7"),
        ({"memory-key": "/nowhere"}, "the key /nowhere cannot be read"),
        ({"device": "tpu"}, "device must be cpu, cuda or cuda:N, got 'tpu'"),
        ({"cpu-threads": 0}, "cpu-threads must be"),
    ]:
        with entry(says):
            assert says in refusal(ask(ROSTER_QUERY, {}, node))


def test_a_memory_of_another_model_is_refused_by_name(tmp_path):
    node = {"state": str(tmp_path)}
    train(node, **CARRY)
    reply = train(node, server_round=2, hidden="5", **CARRY)
    assert reply.error.code == REFUSED
    words = "the memory of client 0 belongs to another model: its 'memory' has 'dense0.bias'"
    assert reply.error.reason == f"{words} of shape (8,) in place of shape (5,)"


def test_a_memory_that_does_not_fit_is_refused_and_the_old_one_stays(tmp_path):
    node = {"state": str(tmp_path)}
    train(node, **CARRY)
    module._node.cache_clear()
    reply = train(node | {"memory-limit": 0.0001}, server_round=2, durable=1, **CARRY)
    assert "does not fit the bound" in reply.error.reason
    assert [entry.server_round for entry in kept(tmp_path / "memory")] == [1, 1]


def test_a_training_is_no_path():
    for name in ["../../etc", "x" * 16, "0123456789ABCDEF"]:
        content = {CONFIG: {"training": name}}
        told = refusal(ask(ROSTER_QUERY, content, {}))
        assert "training must be 16 hexadecimal digits" in told
