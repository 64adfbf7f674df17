"""A site whose file has changed takes no part in a training until its operator says so."""

import hashlib
import hmac
import json

import numpy as np
import pytest
import torch

from engram.client import app as module
from engram.client.disk_memory import DiskStore
from engram.client.training_description import read_training
from engram.home.node_export import remembered_package
from engram.wire.messages import TRAIN
from engram.wire.wire import ROSTER_QUERY
from tests.sites.budgets import TRAINING, answer_of, model_for
from tests.sites.sites import ROSTER
from tests.support import small

pytestmark = pytest.mark.usefixtures("afresh")

SETTINGS = {"method": "ditto", "task": "regression", "num_clients": 1, "clients_per_round": 1}
SETTINGS |= {"partition": "natural", "model": "linear", "standardize": "none"}


def train(node, server_round, training=TRAINING):
    module._node.cache_clear()  # as when the node has been started anew
    model = {"model": {"dense0.weight": torch.zeros(1, 2), "dense0.bias": torch.zeros(1)}}
    content = model_for(small(**SETTINGS), server_round, model=model, training=training)
    return answer_of(small(**SETTINGS), TRAIN, content, **node)


def write(path, rows):
    x = np.random.default_rng(0).normal(size=(rows, 3))
    np.savetxt(path, x, delimiter=",", header="a,b,y", comments="")


def test_other_rows_wait_for_the_sites_operator(tmp_path, warnings_of_engram):
    own, state = tmp_path / "own.csv", tmp_path / "state"
    node = {"data": f"csv:{own}", "state": str(state)}
    write(own, 40)
    assert train(node, 1).error is None
    place = state / "memory" / TRAINING
    noted = json.loads((place / "training.json").read_text())["rows"]["digest"]
    plain = hashlib.sha256(f"file {hashlib.sha256(own.read_bytes()).hexdigest()}\n".encode())
    key = (state / "rows.key").read_bytes()
    assert noted == hmac.digest(key, plain.hexdigest().encode(), "sha256").hex()
    own.write_bytes(own.read_bytes())  # another time, and the same rows
    assert train(node, 2).error is None
    write(own, 41)
    for reply in (train(node, 3), answer_of(small(**SETTINGS), ROSTER_QUERY, ROSTER, **node)):
        assert reply.error.reason == "this node's data cannot be used: its log says why"
    told = [line for line in warnings_of_engram.messages if "--rows-changed" in line]
    assert len(told) == 1
    assert "own.csv has other rows than those that training 0123456789abcdef has" in told[0]
    package = remembered_package(read_training(place), 0, DiskStore(place))
    assert "Its client's data have changed since" in package.card
    assert train(node, 1, "f" * 16).error is None  # a new training learns from what is there
    accepted = train({**node, "rows-changed": True}, 3)
    assert not accepted.error
    assert train(node, 4).error is None
    package = remembered_package(read_training(place), 0, DiskStore(place))
    assert "have changed" not in package.card
    assert noted not in str(accepted.content)


def test_nodes_are_told_by_an_option(monkeypatch, tmp_path, engram):
    from engram.cli import node_cli

    seen = []

    def set_up(folder, own, **how):
        seen.append(own)
        return None, {"state": "."}

    monkeypatch.setattr(node_cli, "_set_up", set_up)
    monkeypatch.setattr(node_cli, "_tell", lambda *args: None)
    monkeypatch.setattr(node_cli, "run_together", lambda nodes: None)
    for options in ([], ["--rows-changed"]):
        status, _, said = engram("node", tmp_path, *options)
        assert status == 0, said
    assert [own.get("rows-changed", False) for own in seen] == [False, True]
