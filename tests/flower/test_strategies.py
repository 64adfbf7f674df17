"""Methods as Flower strategies: Flower's arguments, memories, guards, cohorts, checkpoints."""

import copy
import importlib.util
import inspect
import logging
import re

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg as Flowers
from flwr.serverapp.strategy import Result

from engram import strategies as s
from engram.core.method import Context
from engram.core.rounds import received_by
from engram.core.slots import flat
from engram.flower import Site, client
from engram.flower.module import NetworkModule
from engram.flower.replay import Lacking, Replay, traits_of
from engram.guards.central_noise import central_noise
from engram.guards.clip import clip
from engram.guards.robust.choices import robust_center
from engram.settings.errors import Refused
from engram.settings.fingerprint import source_root
from engram.strategies.by_name import NAMES
from engram.wire.flower import to_params
from tests.flower.support import BATCHES, ROWS, Net, Nodes, fit, gap, kept, run, trainer

AGAIN = trainer(batches=lambda session: session.batches(BATCHES))


def test_editors_read_the_signatures_that_classes_have():
    place = source_root() / "docs" / "tools" / "strategies.py"
    spec = importlib.util.spec_from_file_location("strategies_tool", place)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.stub() == (source_root() / "strategies" / "__init__.pyi").read_text()
    for name in NAMES:
        given = inspect.signature(getattr(s, name)).parameters
        assert inspect.signature(Flowers).parameters.keys() < given.keys()
    assert "weight of the proximal term" in s.Ditto.__doc__


def test_arrays_configs_and_results_are_flowers():
    seen, scored = [], []

    def train(msg, context):
        seen.append((msg.content["config"]["lr"], msg.content["config"]["server-round"]))
        return trainer(lambda: Net(True))(msg, context)

    def score(server_round, arrays):
        Net(True).load_state_dict(arrays.to_torch_state_dict())
        scored.append(server_round)
        return MetricRecord({"accuracy": 0.5})

    start, config, net = ArrayRecord(Net(True).state_dict()), ConfigRecord({"lr": 0.5}), Net(True)
    strategy = s.FedAvg(net, fraction_evaluate=0.0, min_available_nodes=2)
    how = {"initial_arrays": start, "train_config": config, "evaluate_fn": score}
    result, grid = run(strategy, train, **how)
    assert not grid.errors
    assert isinstance(result, Result)
    sent = to_params(grid.sent[0].content["arrays"])
    begun = start.to_torch_state_dict()
    assert gap(sent, {n: begun[n] for n in sent}) == 0
    assert seen == [(0.5, 1)] * 2 + [(0.5, 2)] * 2
    assert dict(config) == {"lr": 0.5}
    assert scored == [*result.evaluate_metrics_serverapp] == [0, 1, 2]
    assert result.train_metrics_clientapp[2]["loss"] == 1.0
    net.load_state_dict(result.arrays.to_torch_state_dict())
    with pytest.raises(Refused, match="initial_arrays must be net's state_dict"):
        strategy.start(grid, ArrayRecord(torch.nn.Linear(2, 2).state_dict()))


def test_updates_that_cannot_be_are_left_out(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    spoiled = {
        100: lambda x: ArrayRecord({n: leaf * torch.nan for n, leaf in x.items()}),
        101: lambda x: ArrayRecord({n: leaf.double() for n, leaf in x.items()}),
        102: lambda x: ArrayRecord({n: leaf for n, leaf in x.items() if n != "head.bias"}),
        103: lambda x: ArrayRecord({n: leaf[:1] for n, leaf in x.items()}),
        104: lambda x: ArrayRecord({n: leaf + 1e9 for n, leaf in x.items()}),
    }

    def train(msg, context):
        reply = trainer()(msg, context)
        if change := spoiled.get(context.node_id):
            reply.content["arrays"] = change(reply.content["arrays"].to_torch_state_dict())
        return reply

    net = Net()
    strategy, alone = s.FedAvg(net), s.FedAvg(net)
    run(strategy, train, rounds=1, nodes=9)
    run(alone, trainer(), rounds=1, nodes=4)  # all train alike
    assert gap(strategy.slots["model"], alone.slots["model"]) < 1e-6
    for node, words in {
        100: "it is not finite",
        101: "float64",
        102: "missing or too many: ['head.bias']",
        103: "instead of float32",
        104: "100 times what is usual",
    }.items():
        assert any(f"node {node} is left out" in x and words in x for x in caplog.messages), words


def test_a_round_that_is_repeated_starts_from_the_same_memory():
    strategy = s.Ditto(Net(), lambda_=0.5)
    _, grid = run(strategy, AGAIN, rounds=3)
    last = [message for message in grid.sent if message.metadata.message_type == "train"][-2]
    assert "engram-start" in grid.sent[0].content
    assert "engram-start" not in last.content
    before = kept(grid.contexts[100])
    assert len([key for key in grid.contexts[100].state if "kept" in key]) == 2
    assert not grid.answer(last).has_error()
    assert gap(before, kept(grid.contexts[100])) == 0


def test_a_memory_that_is_lost_begins_anew():
    calls = []

    def train(msg, context):
        calls.append(context.node_id)
        if len(calls) == 3:  # as if the node had been started again
            context.state = RecordDict()
        return trainer()(msg, context)

    _, grid = run(s.FedPer(Net()), train, rounds=4)
    (error,) = grid.errors
    assert "has lost its memory" in str(error)
    assert kept(grid.contexts[100])
    assert len(calls) == 8


@pytest.mark.full
def test_a_function_that_is_run_again_computes_nothing_twice():
    replay, seen = Replay(), []

    def function():
        x = 3 * torch.ones(2)
        for _ in range(2):
            seen.append(x)
            x = x - replay.objective.gradient({"w": x}, None)["w"]
        return x

    while (found := replay.run(function)) is None:
        replay.answers.append({"w": replay.asked.point["w"] / 3})
    assert found.tolist() == pytest.approx([4 / 3] * 2)  # 3 (1 - 1 / 3)^2
    assert [x is seen[0] for x in seen] == [True, True, False, True, False]
    assert seen[2] is seen[4]
    assert not replay._results
    with pytest.raises(Lacking):
        replay.run(lambda: replay.objective.loss(5 * torch.ones(2), None))
    assert replay.run(lambda: 2 * torch.ones(2)).tolist() == [2, 2]


@pytest.mark.full
def test_trainings_in_one_run_have_memories_of_their_own():
    net, app_runs = Net(), []
    for _ in range(2):
        strategy = s.Ditto(net, lambda_=0.5)
        if app_runs:
            strategy.start(app_runs[0][1], num_rounds=2)
        else:
            app_runs.append(run(strategy, AGAIN))
        app_runs.append(copy.deepcopy(strategy.slots["model"]))
    assert gap(app_runs[1], app_runs[2]) == 0


DITTO = pytest.param(s.Ditto, {"lambda_": 0.5}, marks=pytest.mark.full)


@pytest.mark.parametrize(("cls", "settings"), [DITTO, (s.Scaffold, {})])
def test_a_strategy_that_is_resumed_ends_where_it_would_have(tmp_path, cls, settings, lines):
    ends, net = [], Net()
    for cuts in ((4,), (2, 4)):
        folder = tmp_path / str(len(cuts))

        def train(msg, context, folder=folder):
            mine = Net()
            context.state = RecordDict()  # as after the end of a run
            site = Site(memory=folder / "clients")
            with client(msg, context, mine, site=site) as session:
                fit(mine, session.batches(BATCHES), lr=0.05 * (1 + context.node_id % 3))
            return session.reply(6)

        for part, rounds in enumerate(cuts, 1):  # a simulation's nodes are others in each run
            how = settings | {"fraction_train": 0.5, "fraction_evaluate": 0.0}
            strategy = cls(net, **how, seed=3, resume=folder / "server")
            result, grid = run(strategy, train, rounds=rounds, nodes=4, first=300 * part)
            assert not grid.errors
        drawn = [m.metadata.dst_node_id % 300 for m in grid.sent]
        ends.append((flat(strategy.slots), drawn))
    assert gap(ends[0][0], ends[1][0]) == 0
    assert ends[0][1][4:] == ends[1][1]  # cohorts are a function of seed and round
    assert len({*ends[0][1]}) > 2
    assert [*result.train_metrics_clientapp] == [3, 4]
    had = f"of 4 clients {len({*ends[0][1][:4]})} had a memory: who has lost it begins anew"
    assert [had in line for line in lines] == [True]
    with pytest.raises(Refused, match=r"resume must be a folder of this mr-mtl, got one with"):
        s.MRMTL(net, resume=folder / "server")
    for path in (folder / "server").glob("round-4/*.safetensors"):
        path.write_bytes(b"")
    strategy = cls(net, **settings, resume=folder / "server")
    assert strategy._done == 3
    _, grid = run(strategy, AGAIN, rounds=4, nodes=4, first=600)  # whose memory was in files
    assert "Site(memory=FOLDER) keeps it in files" in str(grid.errors[0])
    run(s.FedAMP(Net(), resume=tmp_path), AGAIN, rounds=1)
    with pytest.raises(Refused, match="resume must have the nodes of its checkpoint"):
        run(s.FedAMP(Net(), resume=tmp_path), AGAIN, first=300)


def test_guards_bound_and_merge():
    net = Net()
    start = {n: x.detach().clone() for n, x in net.named_parameters()}

    def train(msg, context):
        return trainer(lr=3.0 if context.node_id == 100 else 0.1)(msg, context)

    ends = {}
    for name, guards in {
        "none": [],
        "median": [robust_center("median")],
        "clip": [clip(0.01)],
        "noise": [clip(1e-6), central_noise(1e4)],
    }.items():
        strategy = s.FedAvg(net, guards=guards)
        run(strategy, train, rounds=1, nodes=5)
        ends[name] = {n: x - start[n] for n, x in strategy.slots["model"].items()}
    alone = s.FedAvg(net)
    run(alone, trainer(), rounds=1)
    median = {n: x - start[n] for n, x in alone.slots["model"].items()}
    sizes = {k: float(torch.cat([x.flatten() for x in v.values()]).norm()) for k, v in ends.items()}
    assert gap(ends["median"], median) < 1e-6
    assert sizes["clip"] <= 0.01 * 1.0001 < sizes["median"] < sizes["none"]
    # N(0, (z C / n)^2) on each of d numbers: its norm is z C sqrt(d) / n, within a few per cent.
    count = sum(x.numel() for x in start.values())
    expected = 1e4 * 1e-6 * count**0.5 / 5
    assert abs(sizes["noise"] / expected - 1) < 0.5


PAGE = (source_root() / "docs" / "coming-from.md").read_text()


def test_the_manuals_table_has_what_each_method_needs():
    """Methods of each row by their level, losses at the start, and phases."""
    needs = {
        "`mods=[mod]`, and nothing else": ({"any", "steps"}, False, False),
        "the mod, and `batches(loader)` in the loop": ({"batches"}, False, False),
        "`client(..., steps=)` around the loop": ({"steps"}, False, True),
        "`client(..., loss=, first=)` around the loop": ({"any"}, True, False),
        "`session.train(batches, criterion=)` in place of the loop": ({"train"}, False, None),
    }
    listed = set()
    for row, (levels, begins, phases) in needs.items():
        (names,) = re.findall(rf"^\| {re.escape(row)} \| (.*) \|$", PAGE, re.M)
        for name in names.split(", "):
            listed.add(name)
            (cls,) = (n for n in NAMES if n.lower() == name.replace("-", ""))
            strategy, module = getattr(s, cls)(lambda: Net(True)), NetworkModule(Net(True))
            context = Context(module.network(""), Replay().objective, 3, 1, torch.Generator)
            received = received_by(strategy.method, strategy.slots, 0)
            traits = traits_of(strategy.settings, context, received, strategy.method.client.start)
            assert traits.level in levels, name
            assert bool(traits.begins) == begins, name
            assert phases is None or (traits.phases > 1) == phases, name
    assert len(listed) == 39


def test_the_manuals_block_runs():
    first, second = re.findall(r"^```py\n(.*?)^```", PAGE, re.DOTALL | re.M)
    rows = torch.utils.data.TensorDataset(*map(torch.cat, zip(*BATCHES, strict=True)))
    names = {"Net": Net, "net": Net(), "app": ClientApp(), "score": lambda net: 0.5}
    names["loader"] = torch.utils.data.DataLoader(rows, ROWS)
    names["fit"] = lambda net, loader, epochs: [fit(net, loader) for _ in range(epochs)] and 1.0
    exec(first + second, names)
    result = names["strategy"].start(Nodes(names["app"], 4), num_rounds=2)
    assert result.evaluate_metrics_clientapp[2]["accuracy"] == 0.5
    assert result.train_metrics_clientapp[2]["loss"] == 1.0
