"""Whatever cannot be is refused in one line, where it is written or where it is seen."""

import contextlib
import itertools
import logging

import pytest
import torch
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg as Flowers

from engram import strategies as s
from engram.flower import Mod, Site, client, mod, served
from engram.guards.central_noise import central_noise
from engram.guards.clip import clip, local_noise
from engram.guards.row_noise import row_noise
from engram.settings.errors import Refused
from tests.flower.support import BATCHES, Net, Nodes, fit, loss, run, trainer, unscored
from tests.flower.test_mods import plain
from tests.samples import entry


class Wider(Net):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(8, 4)


def frozen():
    return Net().requires_grad_(False)


SERVER = [
    (lambda: s.Ditto(Net(), lambd=1), "argument must be an argument of Ditto, such as lambda_"),
    (lambda: s.Ditto(Net(), lambda_=-1.0), "ditto.lambda must be greater than or equal to 0"),
    (lambda: s.Dito, "has no attribute 'Dito' (did you mean Ditto?)"),
    (lambda: s.FedBN(Net()), "batch norm"),
    (lambda: s.IFCA(Net()), "give the class, Net, in place of Net()"),
    (lambda: s.FedAvg(Net(), personal="neck.*"), "personal must be patterns of parameters"),
    (lambda: s.FedAvg(frozen()), "net must be a module with trained parameters, got 'Net'"),
    (lambda: s.FedRep(torch.nn.Linear(2, 2)), "below its last layer"),
    (lambda: s.KNNPer(torch.nn.RNN(2, 2)), "one feature vector per row"),
    (lambda: s.FedAvg(Net(), guards=[central_noise(1.0)]), "needs that what a client adds has a"),
    (lambda: s.FedAMP(Net(), guards=[clip(1.0), central_noise(1.0)]), "the mean of updates alone"),
    (lambda: s.FedAvg(Net(), guards=[row_noise(1.0, 1.0)]), "others need Engram's own clients"),
]


def again(session):
    return session.batches(BATCHES)


def own_steps(**how):
    def train(msg, context):
        with client(msg, context, Net()) as session:
            session.train(BATCHES, **how)

    return train


def copied(msg, context):
    """Trains a copy of the network, as trainers that average weights do."""
    net = Net()
    with client(msg, context, net):
        fit(Net(), BATCHES)


def halved(msg, context):
    """Has an optimizer for each part of the network."""
    net = Net()
    with client(msg, context, net):
        optimizers = [torch.optim.SGD(part.parameters(), 0.1) for part in (net.body, net.head)]
        loss(net, BATCHES[0]).backward()
        for optimizer in optimizers:
            optimizer.step()


def ahead(msg, context):
    """Fetches each batch while the one before it is worked on, as Lightning's trainer does."""
    net = Net()
    with client(msg, context, net) as session:
        fetched = [*itertools.islice(batches := iter(session.batches(BATCHES)), 1)]

        def one_ahead():
            for batch in batches:
                fetched.append(batch)
                yield fetched.pop(0)
            yield from fetched

        fit(net, one_ahead())


def by_lbfgs(msg, context):
    net = Net()
    with client(msg, context, net):
        torch.optim.LBFGS(net.parameters()).step(lambda: loss(net, BATCHES[0]))


def elsewhere(msg, context):
    with client(msg, context, Net(), site=Site(methods=["fedper", "ditto"])):
        raise AssertionError


def without_number(msg, context):
    context.node_config = {}
    client(msg, context, Net(), site=Site(memory="there"))


def unfinished(msg, context):
    return client(msg, context, Net()).reply(1)


CLIENTS = [
    (s.FedAvg, trainer(Wider), "'head.weight' of shape (4, 8) in place of shape (3, 8)"),
    (s.Ditto, trainer(), "ditto takes 2 gradients of a batch: iterate session.batches"),
    (s.FedRep, trainer(), "has 2 phases: give client(..., steps=)"),
    (s.FedRep, trainer(steps=40), "its last phase had none"),
    (s.Scaffold, trainer(weight_decay=0.1), "weight_decay must be 0"),
    (s.PerFedAvg, own_steps(), "train must be given one of loss and criterion"),
    (s.FedProto, trainer(), "further terms: call session.train"),
    (s.FedProto, own_steps(loss=loss), "criterion="),
    (s.MOON, trainer(), "the rows of a batch: call session.train(batches, criterion=...)"),
    (s.FedLC, own_steps(loss=loss), "criterion="),
    (s.FedAvg, trainer(batches=lambda _: []), "net must be trained in the block"),
    (s.FedProx, trainer(batches=lambda _: []), "must take steps of all of net"),
    (s.FedProx, copied, "train net itself, not a copy of it"),
    (s.Scaffold, halved, "one optimizer must hold all that is trained, got none of head.bias"),
    (s.PFedMe, halved, "got none of head.bias: give client(...) the part that it holds"),
    (s.Ditto, ahead, "must be iterated one step at a time: call optimizer.step(closure)"),
    (s.FedProx, by_lbfgs, "must take one gradient a step, got LBFGS"),
    (s.FedAvg, trainer(batches=lambda _: [(x / 0, y) for x, y in BATCHES]), "must stay finite"),
    (s.FedAvg, elsewhere, "method must be one of fedper, ditto at this client, got 'fedavg'"),
    (s.FedAvg, without_number, "memory must be None on a node without partition-id"),
    (s.FedAvg, unfinished, "reply must follow the block"),
]


def refused(strategy, train, evaluate=unscored):
    """Returns the one line of the last error."""
    app = ClientApp()
    app.train()(train)
    app.evaluate()(evaluate)
    grid = Nodes(app, 2)
    with contextlib.suppress(Refused):  # of a round without updates
        strategy.start(grid, num_rounds=1)
    assert isinstance(grid.errors[-1], Refused)
    assert "\n" not in str(grid.errors[-1])
    return str(grid.errors[-1])


def test_servers_and_clients_are_refused_what_cannot_be():
    for make, words in SERVER:
        with entry(words):
            with pytest.raises((Refused, AttributeError)) as caught:
                make()
            assert words in str(caught.value)
            assert "\n" not in str(caught.value)
    for cls, train, words in CLIENTS:
        with entry(cls.__name__, words):
            assert words in refused(cls(Net()), train)
    exact = s.LocalMOML(Net(), hessian="exact")
    assert "needs Hessian products: call session.train" in refused(exact, trainer())
    assert "losses at several models" in refused(s.IFCA(Net), trainer())
    norms = trainer(lambda: Net(True), again)
    assert "batch norm's statistics are not known" in refused(s.APFL(Net(True)), norms)


def test_others_strategies_and_evaluations_are_refused(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    strategy = s.Ditto(net := Net())
    with pytest.raises(
        Refused, match=r"left out, the last one: its app .*mods=\[engram.flower.mod\]"
    ):
        strategy.start(Nodes(plain(False, [])[0], 2), num_rounds=1)
    assert all(x.equal(net.state_dict()[n]) for n, x in strategy.slots["model"].items())
    for words in ("node 100 is left out: its app has trained by no", "node 100's score is left"):
        assert any(words in x and "mods=[engram.flower.mod]" in x for x in caplog.messages)
    app = ClientApp()
    app.train()(trainer())
    grid = Nodes(app, 2)
    Flowers().start(grid, ArrayRecord(Net().state_dict()), num_rounds=1)
    assert "strategy must be one of engram.strategies" in str(grid.errors[0])

    def evaluate(msg, context):
        with served(msg, context, Net()) as session:
            return session.reply(1)

    assert "after fine-tuning: give served(..., tune=)" in refused(
        s.PerFedAvg(Net()), trainer(), evaluate
    )
    assert "chooses a model by its loss" in refused(s.IFCA(Net), trainer(), evaluate)
    assert "votes of rows" in refused(s.KNNPer(Net()), trainer(), evaluate)
    for name, norm in (("FedRep", 0), ("FedProto", 0), ("PerFedAvg", 1)):
        grid = Nodes(plain(bool(norm), [mod])[0], 2)
        with pytest.raises(Refused, match=r"needs engram\.flower\.client in"):
            getattr(s, name)(Net(bool(norm))).start(grid, num_rounds=1)


def test_a_client_hides_its_update_by_its_own_guards():
    guards = [local_noise(1e-3, 1.0)]
    for site, least, most in (([clip(1e-3)], 0, 1e-3), (guards, 1e-3, 0.1)):
        for mods in (True, False):
            net = Net()
            strategy = s.FedAvg(net, guards=site)
            if mods:
                app, _ = plain(False, [Mod(Site(guards=site))])
                grid = Nodes(app, 2)
                strategy.start(grid, num_rounds=1)
            else:

                def train(msg, context, site=site):
                    mine = Net()
                    with client(msg, context, mine, site=Site(guards=site)) as session:
                        fit(mine, BATCHES)
                    return session.reply(6)

                _, grid = run(strategy, train, rounds=1)
            assert not grid.errors
            start = dict(net.named_parameters())
            moves = [(x - start[n]).flatten() for n, x in strategy.slots["model"].items()]
            size = float(torch.cat(moves).detach().norm())
            assert least < size <= most * 1.001
