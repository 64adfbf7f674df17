"""The engine in this process, and Flower's own strategies on it."""

import re
from itertools import chain

import pytest
import torch
from flwr.serverapp.strategy import FedAvg

from engram.core.slots import flat, unflat
from engram.guards.noise import secret_noise
from engram.server.roster import query_roster
from engram.settings.errors import REFUSED
from engram.strategies.running.network_strategy import Federated
from engram.wire.flower import HostGrid, from_flower, to_flower
from engram.wire.messages import EVALUATE, TRAIN, Question
from tests.samples import entry
from tests.support import assert_same, grid, initial_model, small, train_clients, trainer


@pytest.fixture
def setup():
    t = trainer(small(method="fedavg", num_clients=8, clients_per_round=4))
    return t, grid(t), flat(initial_model(t))


def trained_alone(t, model, clients):
    return train_clients(t, unflat(model), clients, server_round=1, durable=0)


def started(g, model, num_rounds=1, **settings):
    """Returns the result of Flower's FedAvg."""
    start = to_flower({"arrays": model})["arrays"]
    return FedAvg(**settings).start(HostGrid(g), start, num_rounds=num_rounds)


def arrays_of(result):
    return from_flower({"arrays": result.arrays})["arrays"]


def test_flowers_fedavg_is_the_mean_by_examples(setup):
    t, g, model = setup
    result = started(g, model)
    trained = trained_alone(t, model, range(8))
    weights = torch.tensor([float(n) for n in trained.examples])
    weights /= weights.sum()
    expected = {k: torch.tensordot(weights, v, dims=1) for k, v in flat(trained.slots).items()}
    assert_same(arrays_of(result), expected, atol=1e-6)
    assert 0 < result.evaluate_metrics_clientapp[1]["accuracy"] <= 1


def test_flowers_fedavg_is_right_where_nodes_host_several_clients(setup):
    t, _, model = setup
    one, other = (arrays_of(started(grid(t, nodes), model, 2)) for nodes in (8, 3))
    assert_same(one, other, atol=1e-6)


def test_all_clients_of_a_round_train_in_one_call(setup, monkeypatch):
    t, g, model = setup
    calls = []
    train = t.train
    monkeypatch.setattr(
        t, "train", lambda m, g, **k: calls.append([*chain(*g)]) or train(m, g, **k)
    )
    started(g, model, 2, fraction_evaluate=0.0)
    assert [sorted(clients) for clients in calls] == [list(range(8))] * 2


def test_our_strategies_ask_it_and_take_its_replies(setup):
    t, g, model = setup
    strategy = Federated.build(t.experiment, query_roster(g, 8), secret_noise)
    slots = strategy.init()
    slots, _ = g.train(strategy, 1, slots, {"durable": 0}, timeout=60)
    assert not torch.equal(slots["model/dense0.bias"], model["model/dense0.bias"])
    scored = strategy.configure_evaluate(1, slots, {}, g)
    assert strategy.aggregate_evaluate(1, g.ask(scored, timeout=60))["clients"] == 8


def test_models_that_differ_are_not_confused(setup):
    t, g, model = setup
    other = {name: leaf + 0.1 for name, leaf in model.items()}
    questions = [
        Question(node, TRAIN, {"arrays": m}) for node, m in ((1, model), (2, other), (3, model))
    ]
    replies = list(g.ask(questions, timeout=60))
    for reply, (client, m) in zip(replies, ((0, model), (1, other), (2, model)), strict=True):
        alone = flat(trained_alone(t, m, [client]).slots)
        expected = {name: leaf[0] for name, leaf in alone.items()}
        assert_same(reply.content["arrays"], expected, atol=1e-6)
        assert reply.question.node == client + 1


def test_a_bad_message_spoils_none_but_its_own_reply(setup):
    t, _, model = setup
    g = grid(t, 9)  # node 9 hosts nobody
    arrays = model

    def question(node, **config):
        content = {"arrays": arrays, "config": config}
        return Question(node, TRAIN, content)

    empty = Question(3, TRAIN, {})
    questions = [question(1), question(2, clients=[5]), question(9), question(77), empty]
    good, *bad = g.ask(questions, timeout=60)
    assert good.content["clients"]["ids"] == [0]
    assert [reply.question.node for reply in bad] == [2, 9, 77, 3]
    assert all(reply.error.code == 1002 for reply in bad)
    assert "hosts no client" in bad[1].error.reason


def test_replies_to_flowers_messages_are_pulled_once(setup):
    _, g, model = setup
    flower = HostGrid(g)
    message = flower.create_message(to_flower({"arrays": model}), EVALUATE, 2, "")
    (name,) = flower.push_messages([message])
    (reply,) = flower.pull_messages([name, "unknown"])
    assert reply.metadata.reply_to_message_id == name
    assert list(flower.pull_messages([name])) == []
    assert list(flower.get_node_ids()) == list(range(1, 9))


def test_the_client_sides_errors_come_back_as_replies(setup):
    _, g, model = setup
    for config, kind, reason in [
        ({"clients": [5]}, "train", r"clients must be some .* hosts, \[0\], got \[5\]"),
        ({"clients": ["a"]}, "train", r"clients must be a list of int, got \['a'\]"),
        ({"server-round": "x"}, "train", "server-round must be a whole number of 64 bits, got 'x'"),
        ({"most-examples": 2**63}, "train", "most-examples must be .* of 64 bits, got 92233720368"),
        ({"clients": [2**64 - 1]}, "train", "clients must be a list of int, got .184467440737095"),
        ({}, "query.secrets", "no function is registered for questions of kind query.secrets"),
    ]:
        with entry(config, kind):
            content = {"arrays": model, "config": config}
            question = Question(1, kind, content)
            (reply,) = g.ask([question], timeout=60)
            assert reply.error
            assert re.search(reason, reply.error.reason)
            assert reply.error.code == (REFUSED if kind == "train" else 2)
