"""Clients with few rows: batches are cut to them, and who cannot take part is left out by name."""

import json
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

import engram
from engram.client.hosts.local import LocalHost
from engram.client.memory import RamStore
from engram.cohort.trainer.trainer import Trainer
from engram.compare.references import LINEAR
from engram.data.load_federation import federated_data
from engram.data.readers.in_memory import hold
from engram.server.run import run as run_on
from engram.settings.errors import DataError, Refused
from engram.settings.experiment import Experiment
from engram.simulations.grid import InProcessGrid
from tests.samples import EIGHT, sampled

ETA, ROUNDS, STEPS = 0.1, 2, 3
QUICK = {"num_rounds": ROUNDS, "eta": ETA, "progress": False, "adapt_steps": STEPS}
SIZES = (4, 9, 30)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))

    def forward(self, x):
        return self.net(x)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2))

    def forward(self, x):
        return self.net(x)


class Convolved(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 3, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.conv(x).tanh().mean((2, 3)))


def dense():
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))


def rows(count, seed=0, shape=(4,)):
    x = np.random.default_rng(seed).normal(size=(count, *shape)).astype(np.float32)
    return x, (x.reshape(count, -1)[:, 0] > 0).astype(int)


def settings_of(data, **more):
    """An experiment on the rows of clients in memory."""
    x, y = (np.concatenate(parts) for parts in zip(*data, strict=True))
    task = np.repeat(np.arange(len(data)), [len(part[1]) for part in data])
    count = len(data)
    shared = {"num_clients": count, "clients_per_round": count, "partition": "natural"}
    shared |= {"method": "fedavg", "eta": ETA, "num_rounds": ROUNDS, "adapt_steps": STEPS}
    return Experiment(dataset=hold({"x": x, "y": y, "task": task}), **shared | more)


def stepped(module, state, x, y, eta):
    """A module's state after steps on all rows at once."""
    module.load_state_dict(state)
    optimizer = torch.optim.SGD(module.parameters(), lr=eta)
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    return {k: v.clone() for k, v in module.state_dict().items()}


def loop(module, data):
    """Federated averaging in plain torch: each client takes steps on all of its training rows."""
    x, y, rows = data.train.x, data.train.y, data.train.rows
    state, sizes = {k: v.clone() for k, v in module.state_dict().items()}, [*map(len, rows)]
    for _ in range(ROUNDS):
        models = [stepped(module, state, x[own], y[own], ETA) for own in rows]
        sums = {k: sum(n * m[k] for n, m in zip(sizes, models, strict=True)) for k in state}
        state = {k: total / sum(sizes) for k, total in sums.items()}
    return state


def tuned(module, start, data, client):
    """A client's share of right test rows after fine-tuning on all of its training rows."""
    own, test = data.train.rows[client], data.test.rows[client]
    stepped(module, start, data.train.x[own], data.train.y[own], 0.02)
    with torch.no_grad():
        right = module(data.test.x[test]).argmax(1) == data.test.y[test]
    return float(right.float().mean())


@pytest.mark.parametrize(
    ("way", "make", "engine", "nodes", "length"),
    [
        ("in-turn", Small, "sequential", 1, "local_epochs"),
        ("vmap", Small, "vectorized", 1, "local_steps"),
        ("vmap", Small, "vectorized", 3, "local_epochs"),
        ("dense", dense, "vectorized", 1, "local_epochs"),
        ("dense", dense, "vectorized", 3, "local_steps"),
        ("vmap", Convolved, "vectorized", 1, "local_epochs"),
        ("in-turn", Convolved, "sequential", 3, "local_steps"),
    ],
)
def test_full_batches_of_unequal_clients_are_those_of_a_plain_loop(
    way, make, engine, nodes, length, tmp_path
):
    shape = (1, 5, 5) if make is Convolved else (4,)
    data = [rows(n, seed, shape) for seed, n in enumerate(SIZES)]
    torch.manual_seed(7)
    module = make()
    engram.model(lambda: deepcopy(module), "few-rows-net")
    e = settings_of(
        data, model="few-rows-net", batch_size=10**6, eval_every=ROUNDS, **{length: STEPS}
    )
    held = federated_data(e)
    trainer = Trainer(e, held, RamStore(), engine=engine)
    assert way in trainer.ways
    trainer.way = way
    hosted = [range(node, 3, nodes) for node in range(nodes)]
    found = run_on(InProcessGrid(LocalHost(trainer), hosted), e, tmp_path / "run", engine=engine)
    expected = loop(module, held)
    model = engram.load_run(tmp_path / "run").model
    torch.testing.assert_close(model, expected, rtol=0, atol=1e-5)
    accuracy = [tuned(module, expected, held, client) for client in range(3)]
    assert found["clients"]["accuracy-tuned"] == pytest.approx(accuracy)


@pytest.mark.parametrize("length", [{"local_epochs": 2}, {"local_steps": 2}])
@pytest.mark.parametrize(
    "method",
    sampled(("fedavg", "local-moml", "pfedme", "apfl", "ditto", "scaffold", "fedrep"), EIGHT),
)
def test_dense_networks_train_clients_of_unequal_sizes_as_in_turn(method, length, tmp_path):
    memory = {"memory": "carry", "initial_batch_size": 3} if method == "local-moml" else {}
    data = [rows(n, n) for n in (30, 4, 9, 31, 9)]
    e = settings_of(data, method=method, hidden="6", batch_size=7, **length, **memory)
    found = []
    for engine in ("sequential", "vectorized"):
        folder = tmp_path / engine
        trainer = Trainer(e, federated_data(e), RamStore(), engine=engine)
        grid = InProcessGrid(LocalHost(trainer), [[client] for client in range(5)])
        run_on(grid, e, folder, engine=engine)
        found.append(engram.load_run(folder))
    assert trainer.ways == ("dense",)
    torch.testing.assert_close(found[1].model, found[0].model, rtol=0, atol=1e-5)
    one, other = (run.clients.to_numpy(dtype=float) for run in found)
    np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(
    ("length", "augment"),
    [({"local_epochs": 2}, ""), ({"local_steps": 4}, "flip-crop"), ({"order": "stream"}, "")],
)
@pytest.mark.parametrize(
    "method", sampled(("local-moml", "fedavg", "apfl", "fedrep"), ("local-moml",))
)
def test_the_rows_of_a_client_do_not_depend_on_who_else_trains(method, length, augment):
    found = []
    for engine in ("sequential", "vectorized"):
        for some in ([0, 1, 2], [1], [0, 1]):
            e = settings_of(
                [rows(n, n, (1, 6, 6)) for n in SIZES],
                **{"method": method, "hidden": "5", "batch_size": 7, "augment": augment, **length},
            )
            trainer = Trainer(e, federated_data(e), RamStore(), engine=engine)
            draws = trainer.sampler.draw(some, 1)
            own = draws.of([some.index(1)])
            batches = [batch for step in own.each_step() for batch in step.batches]
            batches += [own.initial_batch()] if draws.initial else []
            found.append(batches)
    for batches in found[1:]:
        for one, other in zip(found[0], batches, strict=True):
            assert all(map(torch.equal, one, other))


def test_the_smallest_of_clients_are_left_out_by_name_and_the_run_goes_on(tmp_path, caplog):
    data = {"park": rows(40), "elm": rows(1), "oak": rows(40, 1), "ash": rows(2, 3)}
    quick = {"method": "fedavg", "clients_per_round": 4, "validation_fraction": 0.2, **QUICK}
    run = engram.simulate(data, model=Normed, out=tmp_path / "normed", **quick)
    alone = "it has 1 training row"
    needs = "and this network, which normalizes by its batches, needs 2"
    assert run.results["left-out"]["elm"] == f"{alone}, {needs}"
    assert set(run.results["left-out"]) <= {"elm", "ash"}
    assert not {"elm"} & set(run.clients.index)
    rounds = [row for row in run._record.rows() if row["round"]]
    assert all(1 not in row["cohort"] and "1" in row["absent"] for row in rounds)
    with pytest.raises(Refused, match=f"client elm had no part in the run: {alone}, {needs}"):
        run.personal_model("elm")
    # Another network takes its row.
    plain = engram.simulate(data, model=Small, out=tmp_path / "plain", **quick)
    assert "left-out" not in plain.results
    assert plain.results["unscored"]["elm"] == "it has no test rows to be scored on"
    assert [row["cohort"] for row in plain._record.rows()[1:]] == [[0, 1, 2, 3]] * ROUNDS
    assert "elm" not in plain.clients.index
    assert plain.personal_model("elm").keys() == plain.model.keys()
    assert (plain.export("elm", out=tmp_path / "elm") / "card.md").is_file()


def test_comparisons_and_searches_go_on_without_clients_that_are_left_out(tmp_path):
    data = [rows(40), rows(1), rows(40, 1)]
    quick = {"clients_per_round": 3, "model": Normed, **QUICK, "eval_every": ROUNDS}
    compared = engram.compare(data, methods=["fedavg"], seeds=2, out=tmp_path / "c", **quick)
    assert compared.table.loc["fedavg", "scored"] == 2
    references = json.loads((tmp_path / "c" / "references.json").read_text())
    assert [v is None for v in references["0"][LINEAR]["accuracy"]] == [False, True, False]
    del quick["eta"]
    tuned = engram.tune(data, methods="fedavg", trials=1, seeds=2, out=tmp_path / "t", **quick)
    last = tuned.table("fedavg").iloc[-1]
    quick["eta"] = last["eta"]
    each = [
        engram.simulate(data, method="fedavg", seed=s, out=tmp_path / str(s), **quick)
        for s in (0, 1)
    ]
    scores = [run.results["validation-accuracy"] for run in each]
    assert last["score"] == pytest.approx(np.mean(scores), abs=1e-6)


def test_with_few_shots_a_client_without_query_rows_trains_and_is_not_scored(tmp_path):
    data = {"park": rows(40), "elm": rows(8), "oak": rows(40, 1)}
    shared = {"method": "fedavg", "protocol": "few-shot", "adapt_shots": 4, **QUICK}
    run = engram.simulate(data, out=tmp_path / "run", clients_per_round=3, **shared)
    (reason,) = run.results["unscored"].values()
    assert reason.endswith(
        "test rows, not more than adapt-shots = 4, so that none is left to score"
    )
    assert run.clients.index.tolist() == ["park", "oak"]
    shared["adapt_shots"] = 30
    with pytest.raises(DataError, match="no client has enough rows to be scored: clients"):
        engram.simulate(data, out=tmp_path / "none", clients_per_round=3, **shared)


def test_if_no_client_has_rows_enough_it_is_one_line(tmp_path):
    data = {"park": rows(1), "elm": rows(1, 1)}
    data["park"][1][:], data["elm"][1][:] = 0, 1
    quick = {"method": "fedavg", "model": Normed, "clients_per_round": 2, **QUICK}
    with pytest.raises(DataError) as caught:
        engram.simulate(data, out=tmp_path / "run", **quick)
    words = "no client has enough rows to train: clients [park, elm]: it has 1 training row, and"
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)
    data["oak"] = rows(40, 2)
    with pytest.raises(DataError, match="only 1 of 3 clients can train, and min-clients is 2: cl"):
        engram.simulate(data, out=tmp_path / "run", min_clients=2, **quick)
    assert not (tmp_path / "run").exists()
