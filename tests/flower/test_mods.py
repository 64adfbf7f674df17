"""An app that knows nothing of Engram but its mod gives the numbers of one with a block."""

import copy

import pytest
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from engram import strategies
from engram.core.slots import flat
from engram.flower import batches, mod, served
from tests.flower.support import BATCHES, Net, Nodes, fit, gap, kept, trainer

PLAIN = (
    *("FedAvg", "Scaffold", "FedPer", "LGFedAvg", "FedAMP", "Ditto", "APFL", "PFedMe", "Local"),
    *("FedAdam", "CFL", "PFedHN", "PerFedAvg", "FedBABU", "MRMTL", "FedProx", "FedDyn"),
)
CASES = [(name, {}, False) for name in PLAIN]
CASES += [("FedBN", {}, True), ("FedProx", {"mu": 0.3}, True)]
CASES.append(("LocalMOML", {"memory": "carry"}, False))
TUNED = {"PerFedAvg", "LocalMOML", "FedBABU"}


def plain(norm, mods):
    """Returns an app as Flower's quickstart has it, and the models that it was scored by."""
    app, models = ClientApp(mods=mods), {}

    @app.train()
    def train(msg, context):
        net = Net(norm)
        net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        fit(net, batches(BATCHES))
        metrics = MetricRecord({"num-examples": 6})
        content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
        return Message(content, reply_to=msg)

    @app.evaluate()
    def evaluate(msg, context):
        net = Net(norm)
        net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        models[context.node_id] = net.state_dict()
        metrics = MetricRecord({"num-examples": 1, "accuracy": 1.0})
        return Message(RecordDict({"metrics": metrics}), reply_to=msg)

    return app, models


def blocked(norm):
    app, models = ClientApp(), {}
    app.train()(trainer(lambda: Net(norm), lambda session: session.batches(BATCHES)))

    @app.evaluate()
    def evaluate(msg, context):
        net = Net(norm)
        with served(msg, context, net) as session:
            models[context.node_id] = copy.deepcopy(net.state_dict())
        return session.reply(1, accuracy=1.0)

    return app, models


@pytest.mark.parametrize(
    ("name", "settings", "norm"),
    [
        pytest.param(*case, marks=() if case[0] == "Scaffold" else pytest.mark.full)
        for case in CASES
    ],
)
def test_as_with_a_block(name, settings, norm):
    net, ends = Net(norm), []
    for app, models in (plain(norm, [mod]), blocked(norm)):
        grid = Nodes(app, 2)
        scored = float(name not in TUNED)
        strategy = getattr(strategies, name)(net, fraction_evaluate=scored, **settings)
        strategy.start(grid, num_rounds=3)
        assert not grid.errors
        mine = {str(n): kept(context) for n, context in grid.contexts.items()}
        scores = {str(node): model for node, model in models.items()}
        ends.append((flat(strategy.slots), flat(scores), flat(mine)))
    for one, other in zip(*ends, strict=True):
        assert (
            gap(*({n: x for n, x in end.items() if x.is_floating_point()} for end in (one, other)))
            < 1e-6
        )
    assert ends[0][1] or name in TUNED
