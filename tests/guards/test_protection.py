"""What leaves a client: clipped and noised one by one, whoever it trains with."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from flwr.app import Message
from flwr.clientapp.mod import LocalDpMod

from engram.client.hosts.local import LocalHost
from engram.client.memory import RamStore
from engram.client.requests import Request
from engram.core.slots import flat, over_slots
from engram.core.tree import norm
from engram.guards.changes import changes
from engram.guards.noise import secret_noise, simulated_noise
from engram.link.node_config import NodeConfig
from engram.sites.policy import UNLIMITED
from engram.wire.flower import HostGrid, from_flower, to_flower
from engram.wire.messages import TRAIN, Question
from tests.samples import EIGHT, sampled
from tests.support import (
    PROTECTED,
    assert_same,
    initial_model,
    small_of_any,
    train_clients,
    trainer,
)

CLIENTS = [2, 3, 5, 12]
ENGINES = ["vectorized", "sequential"]
LOCAL = {"privacy": "local", "clip": 0.05, "noise_multiplier": 0.5}


def trained(clients=CLIENTS, noise=None, engine="vectorized", server_round=1, **settings):
    e = small_of_any(**settings)
    t = trainer(e, engine=engine, noise=noise or simulated_noise(e.seed))
    common = initial_model(t)
    done = train_clients(t, common, clients, server_round=server_round, durable=0)
    return done.slots, (t.method, common)


def updates(stack, sent_to):
    """The changes of each client in all that leaves it."""
    method, common = sent_to
    count = len(next(iter(flat(stack).values())))
    each = [over_slots(lambda leaf, i=i: leaf[i], stack) for i in range(count)]
    return [flat(changes(method, common, one)) for one in each]


def in_rows(stack):
    return torch.cat([leaf.flatten(1) for leaf in flat(stack).values()], dim=1)


def noise_of(**settings):
    """The noise on each client's model, in standard deviations: (clients, d)."""
    noisy, _ = trained(**(LOCAL | settings))
    quiet, _ = trained(**(LOCAL | settings | {"privacy": "none"}))
    return (in_rows(noisy) - in_rows(quiet)) / (0.05 * 0.5)


QUICK = [*product((n for n in EIGHT if n in PROTECTED), ENGINES)]
TABLE = [*QUICK, *product((n for n in PROTECTED if n != "local"), ENGINES[:1])]


@pytest.mark.parametrize(("method", "engine"), sampled(TABLE, QUICK))
def test_each_client_is_clipped_by_itself(method, engine):
    free, model = trained(method=method)
    lengths = [float(norm(update)) for update in updates(free, model)]
    bound = sum(sorted(lengths)[1:3]) / 2  # two are within it
    held, _ = trained(method=method, engine=engine, clip=bound)
    pairs = zip(updates(free, model), updates(held, model), lengths, strict=True)
    for before, after, length in pairs:
        share = min(1.0, bound / length)
        assert_same(after, {name: share * leaf for name, leaf in before.items()}, atol=1e-6)
        assert float(norm(after)) <= bound * (1 + 1e-5)
    assert sum(length > bound for length in lengths) == 2


def test_local_noise_is_normal_and_has_the_derived_deviation():
    drawn = noise_of(hidden="64")  # 4 x 4810 numbers
    for one in drawn:
        assert abs(float(one.mean())) < 5 / math.sqrt(one.numel())
        assert abs(float(one.std()) - 1) < 5 / math.sqrt(2 * one.numel())


def test_every_client_and_round_has_noise_of_its_own():
    drawn = torch.cat([noise_of(), noise_of(server_round=2), noise_of(seed=1)])
    correlations = torch.corrcoef(drawn) - torch.eye(len(drawn))
    assert correlations.abs().max() < 5 / math.sqrt(drawn.shape[1])


@pytest.mark.parametrize("engine", ENGINES)
def test_who_else_trains_does_not_bear_on_it(engine):
    together, _ = trained(**LOCAL)
    alone, _ = trained(clients=[5], engine=engine, **LOCAL)
    assert_same(over_slots(lambda leaf: leaf[2:3], together), alone, atol=1e-6)


@pytest.mark.parametrize("budget", [0.0, 1e-3])
def test_nor_do_blocks_and_means(budget):
    e = small_of_any(memory_budget=budget, **LOCAL)
    t = trainer(e, noise=simulated_noise(e.seed))
    (mean,) = t.train(initial_model(t), [CLIENTS], server_round=1, durable=0, combine=1)
    each, _ = trained(**LOCAL)
    assert_same(mean.slots, over_slots(lambda leaf: leaf.mean(dim=0), each), atol=1e-6)


def test_a_trainer_that_is_not_told_otherwise_has_secret_noise():
    e = small_of_any(**LOCAL)
    model = initial_model(trainer(e))
    one, other = (train_clients(trainer(e), model, [2], server_round=1, durable=0) for _ in "ab")
    other = flat(other.slots)
    assert not any(torch.equal(leaf, other[name]) for name, leaf in flat(one.slots).items())


def test_and_so_has_the_client_app(tmp_path):
    from engram.client import app

    node = app._node(small_of_any(**LOCAL), NodeConfig(0, 1), tmp_path, UNLIMITED)
    assert node.host.trainer._noise is secret_noise


@pytest.mark.parametrize("method", ["local-moml", "pfedme"])
def test_what_a_client_keeps_is_neither_clipped_nor_noised(method):
    kept = []
    for settings in ({}, LOCAL):
        e, store = small_of_any(method=method, memory="carry", **settings), RamStore()
        t = trainer(e, store)
        train_clients(t, initial_model(t), CLIENTS, server_round=1, durable=0)
        kept.append(store.load(5, before=2))
    assert_same(*kept)


def test_a_client_that_diverges_spoils_no_other():
    e = small_of_any(**LOCAL)
    t = trainer(e, noise=simulated_noise(e.seed))
    t.data.train.x[t.data.train.rows[3]] = torch.inf
    done = train_clients(t, initial_model(t), CLIENTS, server_round=1, durable=0)
    assert done.clients == [2, 5, 12]
    each, _ = trained(**LOCAL)
    assert_same(done.slots, over_slots(lambda leaf: leaf[[0, 2, 3]], each), atol=1e-6)


def test_it_is_flowers_local_mod_where_a_node_hosts_one_client(monkeypatch):
    # For its epsilon, delta and sensitivity, noise-multiplier is
    # sensitivity / clip * sqrt(2 ln(1.25 / delta)) / epsilon. Noise: as many ones as deviations.
    multiplier = math.sqrt(2 * math.log(1.25 / 1e-5)) / 6.0
    monkeypatch.setattr(np.random, "normal", lambda mean, std, shape: np.full(shape, std))

    def reply(t, message):
        question = Question(1, TRAIN, from_flower(message.content))
        (found,) = LocalHost(t).train([Request(question, [5])])
        return Message(to_flower(found.content), reply_to=message)

    def message(model):
        return HostGrid(None).create_message(to_flower({"arrays": model}), "train", 1, "")

    plain = trainer(small_of_any())
    model = flat(initial_model(plain))
    mod = LocalDpMod(clipping_norm=0.05, sensitivity=0.05, epsilon=6.0, delta=1e-5)
    theirs = mod(message(model), None, lambda query, context: reply(plain, query))
    e = small_of_any(privacy="local", clip=0.05, noise_multiplier=multiplier)
    ours = reply(trainer(e, noise=lambda size, *keys: torch.ones(size)), message(model))
    one, other = (from_flower(each.content)["arrays"] for each in (ours, theirs))
    assert_same(one, {name: leaf.float() for name, leaf in other.items()}, atol=1e-6)
