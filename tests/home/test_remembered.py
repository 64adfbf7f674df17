"""Models that leave a node, without the coordinator."""

import json

import numpy as np
import pytest
import torch

import engram
from engram.cli.__main__ import main
from engram.client.disk_memory import DiskStore
from engram.client.memory import MemoryMismatch, RamStore
from engram.client.training_description import note_training, read_training
from engram.home.exported import load_model
from engram.home.node_export import remembered_package
from engram.settings.errors import Refused
from engram.settings.files import read_json
from engram.simulations.engine import simulate
from engram.wire.checksums import checked, summed
from tests.samples import entry
from tests.sites.budgets import TRAINING
from tests.support import assert_same, small_of_any


def on_a_node(run, folder):
    """Has a node remember what the clients of a run do."""
    store, kept = RamStore(), DiskStore(folder)
    store.restore(run.learned.checkpoint.memories)
    note_training(folder, run.experiment, run.learned.kind, "")
    for client in range(run.experiment.num_clients):
        found = store.load(client, before=99)
        if found is not None:
            kept.save(client, found, server_round=2, durable=0)


def finished(folder, **settings):
    e = small_of_any(**{"num_rounds": 2, "num_clients": 4, "rows_per_class": 4} | settings)
    simulate(e, folder)
    return engram.load_run(folder)


def test_a_node_writes_the_coefficients_that_the_coordinator_would(tmp_path, monkeypatch):
    run = finished(tmp_path / "run", method="molar", dataset="sparse-linear")
    node = tmp_path / "client-1"
    on_a_node(run, node / "state" / "memory" / TRAINING)
    words = ["memory", "export", str(node), TRAINING, "1", "model"]
    monkeypatch.setattr("sys.argv", ["engram", *words])
    main()
    assert_same(load_model("model").state_dict(), load_model(run.export(1, out="b")).state_dict())
    assert (tmp_path / "model" / "card.md").read_text().startswith("# Personal model of 1\n")
    assert (tmp_path / "model" / "coefficients.csv").exists()


@pytest.mark.parametrize("method", ["fedper", "fedem"])
def test_a_part_of_a_model_is_none(method, tmp_path):
    run = finished(tmp_path / "run", method=method)
    on_a_node(run, tmp_path / "state")
    store = DiskStore(tmp_path / "state")
    client = store.clients()[0]
    with pytest.raises(Refused, match=f"client {client} remembers no whole model, and nothing is"):
        remembered_package(read_training(tmp_path / "state"), client, store)


def test_a_memory_that_an_earlier_version_wrote_is_refused_in_one_line(tmp_path):
    run = finished(tmp_path / "run", method="ditto")
    node = tmp_path / "state"
    on_a_node(run, node)
    store, last = DiskStore(node), run.personal_model(1)
    expected = "^the memory of client 1 belongs to another method, or an earlier version of [^\n]*$"
    for before in ("personal/", "", "own/"):
        old = {before + name: leaf for name, leaf in last.items()}
        store.save(1, old, server_round=3, durable=3)
        with entry(before), pytest.raises(MemoryMismatch, match=expected):
            remembered_package(read_training(node), 1, store)


def test_memories_of_earlier_versions_are_refused(tmp_path):
    with pytest.raises(Refused, match=r"training\.json is not there: the memories are of an"):
        read_training(tmp_path)
    for text in ('{"settings": {}, "crc32": "00000000"}', '{"settings": {}}'):
        (tmp_path / "training.json").write_text(text)
        with pytest.raises(Refused, match=r"training\.json is damaged: its checksum is missing or"):
            read_training(tmp_path)


def test_a_run_on_ray_has_its_memories_in_its_folder(tmp_path):
    run = finished(tmp_path / "run", method="ditto")
    expected = run.personal_model(1)
    training = run.learned.record.config["training"]
    on_a_node(run, run.folder / "memory" / training)
    ray = engram.load_run(run.folder)
    ray.learned.checkpoint = run.learned.checkpoint._replace(memories=None)
    assert_same(ray.personal_model(1), expected)
    (run.folder / "memory").rename(tmp_path / "elsewhere")
    with pytest.raises(Refused, match="memories are on the nodes, where engram memory export"):
        ray.personal_model(1)


def edit(path, **entries):
    path.write_text(json.dumps(summed(checked(read_json(path)) | entries)))


def on_flower(run):
    """The run as if Flower's nodes had trained it, whose memories are not in its checkpoint."""
    edit(run.folder / "config.json", engine="flower")
    there = engram.load_run(run.folder)
    there.learned.checkpoint = there.learned.checkpoint._replace(memories=None)
    return there


@pytest.mark.parametrize("method", ["per-fedavg", "scaffold", "ifca", "knn-per"])
def test_what_is_served_without_memories_is_made_of_data_at_hand(method, tmp_path):
    run = finished(tmp_path / "run", method=method)
    expected = load_model(run.export(1, out="model")).state_dict()
    assert_same(load_model(on_flower(run).export(1, out="other")).state_dict(), expected)


def test_rows_of_nodes_own_are_not_taken_from_the_coordinators_data(tmp_path):
    run = finished(tmp_path / "run", method="per-fedavg")
    data, there = run.learned.data, on_flower(run)
    clients = run.results["clients"]
    queries = [count + (client == 2) for client, count in enumerate(clients["queries"])]
    edit(run.folder / "results.json", clients=clients | {"queries": queries})
    what = r"client 1 is served by .* not here \(.* has other rows here than on the run's nodes\): "
    with pytest.raises(Refused, match=what + "on its node, engram memory export writes its model"):
        there.export(1, out="model")
    # The common model needs no rows, and says nothing of these.
    common = there.export(out="common")
    assert json.loads((common / "model.json").read_text())["ranges"] == []
    # A node that has the run's folder adapts a model to its rows.
    x, y = data.train.take(torch.from_numpy(data.train.rows[1]))
    np.savez("own.npz", x=x, y=y)
    assert load_model(there.adapt("own.npz"))(x).shape == (len(y), run.learned.kind.outputs)


def test_a_training_that_a_node_does_not_know_is_refused(tmp_path, monkeypatch, capsys):
    words = ["memory", "export", str(tmp_path / "client-1"), TRAINING, "1", "model"]
    (tmp_path / "client-1" / "state" / "memory").mkdir(parents=True)
    monkeypatch.setattr("sys.argv", ["engram", *words])
    with pytest.raises(SystemExit):
        main()
    assert f"has no training '{TRAINING}': see `engram memory list" in capsys.readouterr().err
