"""Any Flower strategy runs on the in-process grid, ours and Flower's own."""

import re
from itertools import chain

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from engram.core.slots import flat, unflat
from engram.guards.noise import secret_noise
from engram.server.roster import query_roster
from engram.settings.errors import REFUSED
from engram.strategies.network_strategy import Federated
from engram.wire import wire
from engram.wire.wire import to_params, to_record
from tests.samples import entry
from tests.support import assert_same, grid, initial_model, small, train_clients, trainer


@pytest.fixture
def setup():
    t = trainer(small(method="fedavg", num_clients=8, clients_per_round=4))
    return t, grid(t), flat(initial_model(t))


def trained_alone(t, model, clients):
    return train_clients(t, unflat(model), clients, server_round=1, durable=0)


def test_flowers_fedavg_is_the_mean_by_examples(setup):
    t, g, model = setup
    result = FedAvg().start(g, to_record(model), num_rounds=1)
    trained = trained_alone(t, model, range(8))
    weights = torch.tensor([float(n) for n in trained.examples])
    weights /= weights.sum()
    expected = {k: torch.tensordot(weights, v, dims=1) for k, v in flat(trained.slots).items()}
    assert_same(to_params(result.arrays), expected, atol=1e-6)
    assert 0 < result.evaluate_metrics_clientapp[1]["accuracy"] <= 1


def test_flowers_fedavg_is_right_where_nodes_host_several_clients(setup):
    t, _, model = setup
    one = FedAvg().start(grid(t, 8), to_record(model), num_rounds=2)
    other = FedAvg().start(grid(t, 3), to_record(model), num_rounds=2)
    assert_same(to_params(one.arrays), to_params(other.arrays), atol=1e-6)


def test_all_clients_of_a_round_train_in_one_call(setup, monkeypatch):
    t, g, model = setup
    calls = []
    train = t.train
    monkeypatch.setattr(
        t, "train", lambda m, g, **k: calls.append([*chain(*g)]) or train(m, g, **k)
    )
    FedAvg(fraction_evaluate=0.0).start(g, to_record(model), num_rounds=2)
    assert [sorted(clients) for clients in calls] == [list(range(8))] * 2


def test_a_round_in_one_process_writes_no_bytes(setup, monkeypatch):
    t, g, model = setup
    strategy = Federated.build(t.experiment, query_roster(g, 8), secret_noise)
    slots = to_params(strategy.init())
    monkeypatch.delattr(wire, "_bytes")  # which writes those of an array
    slots, _ = g.train(strategy, 1, slots, {"durable": 0}, timeout=60)
    assert not torch.equal(slots["model/dense0.bias"], model["model/dense0.bias"])
    scored = strategy.configure_evaluate(1, to_record(slots), ConfigRecord(), g)
    assert strategy.aggregate_evaluate(1, g.send_and_receive(scored))["clients"] == 8


def test_models_that_differ_are_not_confused(setup):
    t, g, model = setup
    other = {name: leaf + 0.1 for name, leaf in model.items()}
    messages = [
        Message(RecordDict({"arrays": to_record(m)}), dst_node_id=node, message_type="train")
        for node, m in ((1, model), (2, other), (3, model))
    ]
    replies = list(g.send_and_receive(messages))
    for reply, (client, m) in zip(replies, ((0, model), (1, other), (2, model)), strict=True):
        alone = flat(trained_alone(t, m, [client]).slots)
        expected = {name: leaf[0] for name, leaf in alone.items()}
        assert_same(to_params(reply.content["arrays"]), expected, atol=1e-6)
        assert reply.metadata.src_node_id == client + 1


def test_a_bad_message_spoils_none_but_its_own_reply(setup):
    t, _, model = setup
    g = grid(t, 9)  # node 9 hosts nobody
    arrays = to_record(model)

    def message(node, **config):
        content = RecordDict({"arrays": arrays, "config": ConfigRecord(config)})
        return Message(content, dst_node_id=node, message_type="train")

    empty = Message(RecordDict(), dst_node_id=3, message_type="train")
    messages = [message(1), message(2, clients=[5]), message(9), message(77), empty]
    good, *bad = g.send_and_receive(messages)
    assert good.content["clients"]["ids"] == [0]
    assert [reply.metadata.src_node_id for reply in bad] == [2, 9, 77, 3]
    assert all(reply.error.code == 1002 for reply in bad)
    assert "hosts no client" in bad[1].error.reason


def test_messages_can_be_pushed_and_pulled_apart(setup):
    _, g, model = setup
    message = Message(
        RecordDict({"arrays": to_record(model)}), dst_node_id=2, message_type="evaluate"
    )
    (name,) = g.push_messages([message])
    (reply,) = g.pull_messages([name, "unknown"])
    assert reply.metadata.reply_to_message_id == name
    assert list(g.pull_messages([name])) == []
    assert list(g.get_node_ids()) == list(range(1, 9))
    assert g.run.run_id == 1


def test_the_client_sides_errors_come_back_as_replies(setup):
    _, g, model = setup
    for config, kind, reason in [
        ({"clients": [5]}, "train", r"clients must be some .* hosts, \[0\], got \[5\]"),
        ({"clients": ["a"]}, "train", r"clients must be a list of int, got \['a'\]"),
        ({"server-round": "x"}, "train", "server-round must be a whole number of 64 bits, got 'x'"),
        ({"most-examples": 2**63}, "train", "most-examples must be .* of 64 bits, got 92233720368"),
        ({"clients": [2**64 - 1]}, "train", "clients must be a list of int, got .184467440737095"),
        ({}, "query.secrets", "no function is registered for messages of type query.secrets"),
    ]:
        with entry(config, kind):
            content = RecordDict({"arrays": to_record(model), "config": ConfigRecord(config)})
            message = Message(content, dst_node_id=1, message_type=kind)
            (reply,) = g.send_and_receive([message])
            assert reply.has_error()
            assert re.search(reason, reply.error.reason)
            assert reply.error.code == (REFUSED if kind == "train" else 2)
