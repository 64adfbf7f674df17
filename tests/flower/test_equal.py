"""Every method in a loop of a user's: the numbers of ``engram.simulate``, on its batches."""

from functools import partial

import numpy as np
import pytest
import torch
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy
from torch.utils._pytree import tree_map

import engram
from engram import strategies
from engram.cohort.trainer.sampler import Sampler
from engram.core.slots import flat
from engram.flower import client, served
from engram.strategies.by_name import NAMES
from tests.flower.support import Net, Nodes, fit, gap, kept, loss
from tests.samples import entry

ROUNDS, STEPS, ETA = 3, 5, 0.1
OWN = {
    "PFedMe": {"eta": 0.05, "alpha": 0.05, "lambda_": 5.0},
    "PerFedAvg": {"alpha": 0.05},
    "LocalMOML": {"alpha": 0.05, "initial_batch_size": 6},
    "FedFomo": {"initial_batch_size": 6, "models": 2},
    "IFCA": {"initial_batch_size": 6, "clusters": 2},
    "Floco": {"tau": 2},
    "FedProx": {"mu": 0.3},
    "FedDyn": {"alpha": 0.2},
}
# What a client's code has: its own loop alone, batches that come again, or the method's steps.
CASES = {
    "loop": (
        *("FedAvg", "FedProx", "Scaffold", "FedDyn", "MRMTL", "FedPer", "LGFedAvg", "FedBABU"),
        *("FedRep", "FedAlt", "PerFedAvg", "LocalMOML", "FedALA", "FedAMP", "Local", "FedAdam"),
        *("FedYogi", "FedAdagrad", "CFL", "FedFomo", "PFedHN", "Floco", "IFCA", "KNNPer"),
        *("FedNova", "FedAvgM"),
    ),
    "batches": ("Ditto", "APFL", "PFedMe"),
    "norm": ("FedBN", "FedAvg", "Ditto", "PFedMe"),
    "momentum": ("Scaffold", "FedProx", "Ditto", "PFedMe"),
    "loss": ("FedAvg", "Ditto", "PerFedAvg", "LocalMOML", "Floco"),
    "criterion": (
        *("FedProto", "FedPAC", "FedRoD", "FedDBE", "GPFL", "FedAS", "FedEM", "MOON", "FedLC"),
    ),
}
QUICK = {  # what an engine can tell apart
    *(("FedAvg", "loop"), ("Ditto", "batches"), ("Scaffold", "momentum"), ("FedPAC", "criterion")),
    *(("FedBN", "norm"), ("FedEM", "criterion"), ("PFedHN", "loop"), ("LocalMOML", "loss")),
}
SEVERAL = {"IFCA", "FedEM", "Floco"}  # methods with several networks at the start
UNSERVED = {"KNNPer"}
PLAIN = {
    *("FedAvg", "Scaffold", "Ditto", "MRMTL", "APFL", "FedPer", "FedRep", "FedBN", "PFedMe"),
    *("FedALA", "FedAMP", "Local", "FedNova", "FedAvgM", "MOON", "FedLC"),
}  # served by a model that no rows change
OTHERS = [(name, way) for way, names in CASES.items() for name in names if (name, way) not in QUICK]


def federation():
    rng = np.random.default_rng(3)
    for i, count in enumerate((24, 32, 40)):
        x = rng.normal(size=(count, 5)).astype("float32")
        y = (x[:, i % 3 : i % 3 + 3] + 0.3 * rng.normal(size=(count, 3))).argmax(1)
        y[:3] = 0, 1, 2
        yield x, y


def simulated(name, net, monkeypatch, folder, settings):
    """Returns a run, and the batches and rows of its clients."""
    batches, rows, draw = {}, {}, Sampler._draw

    def seen(self, clients, server_round):
        drawn = draw(self, clients, server_round)
        for i, number in enumerate(clients):
            mine = drawn.of([i])
            first = mine.initial_batch()
            steps = [alone(step.batches) for step in mine.each_step()]
            batches[server_round, number] = first and alone(first), steps
            rows[number] = len(self._train.rows[number])
        return drawn

    def alone(batch):
        return tree_map(lambda leaf: leaf[0].clone(), batch)

    monkeypatch.setattr(Sampler, "_draw", seen)
    how = {"num_rounds": ROUNDS, "local_steps": STEPS, "batch_size": 6, "clients_per_round": 3}
    how |= {"cores": 1, "engine": "sequential", "progress": False, "seed": 1}
    how |= {"validation_fraction": 0, "test_fraction": 0.25, "out": folder / "run"}
    run = engram.simulate([*federation()], method=name, model=net, **how, **settings)
    monkeypatch.setattr(Sampler, "_draw", draw)
    return run, batches, rows


def in_flower(strategy, norm, batches, rows, way, settings, eta):
    """Runs the rounds in an app; returns the grid, and what served each client."""
    app, models, own = ClientApp(), {}, strategy._name

    @app.train()
    def train(msg, context):
        number, server_round = context.node_config["partition-id"], msg.content["engram"]["round"]
        first, steps = batches[server_round, number]
        net = Net(norm)  # which starts elsewhere
        each = [batch for step in steps for batch in step]
        chooses = own in ("ifca", "fedfomo")
        if settings.get("memory") == "carry" and server_round > 1:
            first = None  # a client that has a memory asks for none
        every = each if first is None or chooses else [first, *each]
        choosing = {"loss": loss, "first": first} if chooses else {}
        with client(msg, context, net, steps=STEPS, **choosing) as session:
            if way == "loss":
                session.train(every, loss)
            elif way == "criterion":
                session.train(every, criterion=cross_entropy)
            else:
                again = own in ("ditto", "apfl", "pfedme")
                momentum = 0.9 if way == "momentum" else 0.0
                fit(net, session.batches(every) if again else every, eta, momentum=momentum)
        return session.reply(rows[number])

    @app.evaluate()
    def evaluate(msg, context):
        number, net = context.node_config["partition-id"], Net(norm)
        choose = partial(loss, net, batches[1, number][1][0][0])
        with served(msg, context, net, tune=lambda: None, loss=choose) as session:
            models[number] = {n: x.clone() for n, x in net.state_dict().items()}
        return session.reply(1, accuracy=0.5)

    grid = Nodes(app, 3)
    strategy.start(grid, num_rounds=ROUNDS)
    if grid.errors:
        raise grid.errors[0]
    return grid, models


def test_equal_to_a_simulation(monkeypatch, tmp_path):
    assert {name for names in CASES.values() for name in names} == {*NAMES}
    assert len(NAMES) == 39
    for name, way in sorted(QUICK):
        with entry(f"{name}, {way}"):
            compare(name, way, monkeypatch, tmp_path / name)


@pytest.mark.full
@pytest.mark.parametrize(("name", "way"), OTHERS)
def test_every_other_is_equal_to_a_simulation(name, way, monkeypatch, tmp_path):
    compare(name, way, monkeypatch, tmp_path)


def compare(name, way, monkeypatch, folder):
    torch.manual_seed(0)
    norm = way == "norm"
    net, cls = Net(norm), getattr(strategies, name)
    settings = OWN.get(name, {})
    if way == "loss" and name in ("PerFedAvg", "LocalMOML"):
        settings = settings | {"hessian": "exact"}
    if name == "LocalMOML" and way == "loop":
        settings = settings | {"memory": "carry"}
    if way == "momentum" and name == "PFedMe":
        settings = settings | {"lambda_": 2.0}
    start = Net if name in SEVERAL else net
    strategy = cls(start, seed=1, **settings)
    eta = settings.get("eta", getattr(strategy.settings, "eta", ETA))
    options = {"optimizer": "momentum", "momentum": 0.9} if way == "momentum" else {}
    if name == "FedNova":
        options = {"local_epochs": 1}  # clients of 18, 24 and 30 rows take 3, 4 and 5 steps
    given = settings | options
    run, batches, rows = simulated(strategy._name, start, monkeypatch, folder, given)
    if name in SEVERAL:
        strategy.slots = run.learned.method.server.start
    if name in UNSERVED:
        strategy.fraction_evaluate = 0.0
    begun = flat(run.learned.method.server.start)
    grid, models = in_flower(strategy, norm, batches, rows, way, settings, eta)
    assert gap(flat(strategy.slots), flat(run.learned.slots)) < 1e-6
    assert not begun or gap(flat(strategy.slots), begun) > 1e-3  # something has been learned
    for number in range(3):
        theirs = run.learned.memory(number) or {}
        theirs = {n.removeprefix("kept/"): x for n, x in theirs.items()}
        assert gap(kept(grid.contexts[100 + number]), theirs) < 1e-6
        if name in PLAIN:
            served_by = run.personal_model(number)
            mine = models[number]
            assert gap({n: mine[n] for n in served_by}, served_by) < 1e-6
