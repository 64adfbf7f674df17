"""Models that nodes write against those that the coordinator writes."""

import json
import math
import re
from pathlib import Path

import pandas as pd
import pytest
import torch

import engram
from engram.cli.__main__ import main
from engram.client.disk_memory import DiskStore, MemoryFull
from engram.client.encrypted_file import new_key
from engram.client.memory import MemoryMismatch
from engram.client.served_slots import read_scored
from engram.client.training_description import read_training
from engram.client.training_folders import kept
from engram.home.exported import load_model
from engram.home.node_export import remembered_package
from engram.home.predicting import predict
from engram.server.run import run as run_on
from engram.settings.errors import Refused
from engram.simulations.engine import simulate
from tests.hospitals import write_hospitals
from tests.samples import EIGHT
from tests.server.nodes import NodesGrid
from tests.support import declared_values, small, small_of_any

CLIENTS = 5
QUICK = [(method, "") for method in EIGHT] + [("fedavg", "dense1.*"), ("pfedhn", "dense1.*")]


def of_any(**settings):
    shared = {"num_rounds": 2, "num_clients": CLIENTS, "rows_per_class": 4, "adapt_steps": 3}
    shared |= {"clients_per_round": 2, "unseen_clients": 1, "timeout": 5.0}
    normed = settings["method"] == "fedbn"
    shared |= {"model": "resnet", "hidden": "4"} if normed else {"model": "mlp"}
    return small_of_any(**shared | settings)


def on_a_node(e, folder, **options):
    """Has a node with all clients take part in a run; returns the folder of its memories."""
    grid = NodesGrid(e, [""], folder, **options)
    run_on(grid, e, folder / "deployed", engine="flower")
    (place,) = (folder / "node-1" / "memory").iterdir()
    return place


def at_home(place, client, **options):
    return remembered_package(read_training(place), client, DiskStore(place, **options))


@pytest.mark.parametrize(("method", "personal"), QUICK)
def test_a_node_writes_the_model_that_the_coordinator_would(method, personal, tmp_path):
    e = of_any(method=method, personal=personal)
    simulate(e, tmp_path / "run")
    run = engram.load_run(tmp_path / "run")
    place = on_a_node(e, tmp_path)
    for client in range(CLIENTS):
        here, there = (
            tmp_path / f"home-{client}",
            run.export(client, out=tmp_path / f"there-{client}"),
        )
        at_home(place, client).write(here, "safetensors")
        found, expected = (load_model(each).state_dict() for each in (here, there))
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
        found, expected = (json.loads((each / "model.json").read_text()) for each in (here, there))
        for key in ("form", "outputs", "classes", "client", "kind", "ranges", "intervals"):
            assert found[key] == expected[key]
        cards = [(each / "card.md").read_text() for each in (here, there)]
        scores, same = (re.findall(r"\| its .* \|", card) for card in cards)
        assert scores == same != []


def test_what_is_exported_is_what_was_scored_last(tmp_path):
    """Round 3 trains and is not scored: the model at home is still that of round 2."""
    e = of_any(method="fedper", num_rounds=2, clients_per_round=CLIENTS, unseen_clients=0)
    place = on_a_node(e, tmp_path)
    store, expected = DiskStore(place), at_home(place, 1)
    newer = {path: leaf + 1 for path, leaf in store.load(1, before=3).items()}
    store.save(1, newer, server_round=3, durable=3)
    found = at_home(place, 1)
    for name, leaf in expected.module.state_dict().items():
        assert torch.equal(found.module.state_dict()[name], leaf)
    assert "| run | " in found.card
    assert "after round 2 |" in found.card


def test_a_client_that_remembers_nothing_is_listed_and_exported_by_commands(
    tmp_path, monkeypatch, capsys
):
    key = tmp_path / "memory.key"
    new_key(key)
    place = on_a_node(
        of_any(method="fedavg", out="runs/ward"), tmp_path, **{"memory-key": str(key)}
    )
    assert [(each.client, each.server_round) for each in kept(place.parent)] == [
        (client, 2) for client in range(CLIENTS)
    ]
    words = ["memory", "export", str(tmp_path), place.name, "3", "model"]
    there = ["--state", str(tmp_path / "node-1")]
    monkeypatch.setattr("sys.argv", ["engram", *words, *there])
    with pytest.raises(SystemExit):
        main()
    assert "it is encrypted, and no key is given" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["engram", *words, *there, "--memory-key", str(key)])
    main()
    card = Path("model/card.md").read_text()
    assert "| run | ward, after round 2 |" in card
    assert re.search(r"\| its \d+ test rows \| accuracy \| 0\.\d+ \| ", card)


def test_training_goes_before_what_is_kept_for_exports(tmp_path):
    leaf = {"w": torch.zeros(1000)}
    store = DiskStore(tmp_path, limit=10_000)
    store.save_serving(0, leaf, server_round=1)
    store.save_serving(0, leaf, server_round=2)
    assert [*store.serving(0)] == [2]
    store.save(0, leaf, server_round=3, durable=3)
    with pytest.raises(MemoryFull, match=r"what serves client 1 of .* does not fit the bound"):
        store.save_serving(1, leaf, server_round=3)
    store.save(1, leaf, server_round=3, durable=3)
    assert (store.serving(0), store.load(0, before=4).keys()) == ({}, leaf.keys())
    again = DiskStore(tmp_path, limit=10_000)
    assert again.load(1, before=4).keys() == leaf.keys()


def test_scores_do_not_depend_on_room_for_exports(tmp_path, warnings_of_engram):
    e = of_any(method="fedavg")
    place = on_a_node(e, tmp_path, **{"memory-limit": 0.001})
    assert engram.load_run(tmp_path / "deployed").results["scored"] == CLIENTS
    said = [line for line in warnings_of_engram.messages if "cannot be exported here" in line]
    assert said
    assert "what serves client 0 of" in said[0]
    with pytest.raises(Refused, match="has no memory of client 0: it had no part in the training"):
        at_home(place, 0)


def test_a_damaged_file_is_refused(tmp_path):
    store = DiskStore(tmp_path)
    store.save_serving(0, {"received/w": torch.zeros(3)}, server_round=1)
    assert read_scored(store, 0).received["w"].tolist() == [0, 0, 0]
    (path,) = store.serving(0).values()
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(MemoryMismatch, match="checksum is wrong"):
        read_scored(store, 0)


def test_a_hospitals_model_says_between_which_values_its_inputs_lie(tmp_path):
    """A model of a regression has intervals, and notes rows in other units."""
    paths = write_hospitals(tmp_path / "data", mended=True)
    columns = {"target_column": "days", "input_columns": "age,bp,crea,sex", "missing": "median"}
    columns |= {"schema": declared_values(sex="f|m"), "task": "regression", "model": "mlp"}
    e = small(method="fedper", num_clients=4, clients_per_round=4, timeout=5.0, **columns)
    grid = NodesGrid(e, [f"csv:{path}" for path in paths], tmp_path)
    run_on(grid, e, tmp_path / "run", engine="flower")
    (place,) = (tmp_path / "node-2" / "memory").iterdir()
    package = at_home(place, 1)
    package.write(tmp_path / "model", "safetensors")
    about = package.exported
    assert [each.name for each in about.ranges] == ["age", "bp", "crea"]
    data = read_training(place).data(1)

    def away(split):
        x, y = split.take(torch.from_numpy(split.rows[1]))
        return (package.module(x)[:, 0] - y.reshape(-1)).abs().detach().sort().values

    test, held_out = away(data.test), away(data.validation)
    assert f"its {len(test)} test rows | rmse" in package.card
    ninety = {each.level: each.radii for each in about.intervals}[0.9]
    # Split conformal prediction: the ceil(0.9 (n + 1))-th smallest error.
    rank = math.ceil(0.9 * (len(held_out) + 1))
    assert ninety[0] == pytest.approx(float(held_out[rank - 1]), abs=1e-5)
    told = f"by its {len(held_out)} validation rows, on its {len(test)} test rows | coverage | "
    share = float((test <= ninety[0]).double().mean())
    assert f"{told}{share:.4g} |" in package.card
    frame = pd.read_csv(paths[1])
    frame.assign(crea=frame.crea * 88.4).to_csv(tmp_path / "raw.csv", index=False)
    assert not predict(tmp_path / "model", paths[1], tmp_path / "fine.csv").notes
    (note,) = predict(tmp_path / "model", tmp_path / "raw.csv", tmp_path / "odd.csv").notes
    assert "raw.csv lies far from the rows that the model has learned from (crea: 8" in note
