"""Races with PFLlib, in whose place is a system whose models stay as they begin."""

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import accuracy
from benchmarks.accuracy import Race, RunScore
from benchmarks.peers import PeerMissing
from benchmarks.pfllib_pairs import PAIRS
from benchmarks.pfllib_peer import Mlp, drawing, gate_of, network
from engram.core.streams import Stream, torch_generator
from engram.data.federated import model_for
from engram.data.load_federation import federated_data
from engram.data.readers.in_memory import hold

# Its one server does what PFLlib's do where they are called from: it evaluates, and counts rounds.
_SERVER = """
import copy
from types import SimpleNamespace

class Still:
    def __init__(self, args, times):
        self.Budget, self.rounds = [], args.global_rounds
        copies = (copy.deepcopy(args.model) for _ in range(args.num_clients))
        self.clients = [SimpleNamespace(model=each, load_train_data=None) for each in copies]

    def train(self):
        for _ in range(self.rounds + 1):
            self.evaluate()
            self.Budget.append(0.0)
"""


@pytest.fixture
def dataset():
    rng = np.random.default_rng(0)
    y = np.arange(2000) % 10
    x = rng.integers(0, 256, (2000, 1, 28, 28), dtype=np.uint8)
    x[np.arange(2000), 0, y, y] = 255
    return hold({"x": x, "y": y})


def experiment(dataset, method="fedavg", **settings):
    made = accuracy.experiment(
        method, dataset, seed=0, rounds=3, network="mlp", epoch=settings.pop("epoch", False)
    )
    return made.from_config(made.to_config() | {"dirichlet-alpha": 10.0} | settings)


@pytest.fixture
def data(dataset):
    return accuracy.rows_of(experiment(dataset))


def test_training_rows_fill_batches(dataset, data):
    whole = federated_data(experiment(dataset))
    for kept, rows in zip(data.train.rows, whole.train.rows, strict=True):
        assert len(kept) % 20 == 0 < len(kept)
        assert 0 <= len(rows) - len(kept) < 20
        assert set(kept) <= set(rows)
    assert all(map(np.array_equal, data.test.rows, whole.test.rows))


def test_rows_are_written_as_pfllib_reads_them(data, tmp_path):
    accuracy.write_rows(data, tmp_path)
    for part, split in (("train", data.train), ("test", data.test)):
        for client, rows in enumerate(split.rows):
            with (tmp_path / part / f"{client}.npz").open("rb") as file:
                held = np.load(file, allow_pickle=True)["data"].tolist()  # utils/data_utils.py
            x, y = split.take(torch.from_numpy(rows))
            assert torch.equal(torch.Tensor(held["x"]), x)
            assert torch.equal(torch.Tensor(held["y"]).type(torch.int64), y)


def test_both_start_from_the_same_function(dataset, data):
    e = experiment(dataset)
    ours = model_for(e, data.kind)
    start = ours.init(torch_generator(0, Stream.MODEL))
    theirs = network({"network": "mlp", "classes": 10, "split": False}, [*start.values()])
    x, _ = data.test.take(torch.from_numpy(data.test.rows[0]))
    torch.testing.assert_close(theirs(x), ours.apply(start, x))


def test_the_cnn_has_the_shapes_of_pfllibs():
    # system/flcore/trainmodel/models.py, FedAvgCNN(in_features=1, num_classes=10, dim=1024)
    shapes = [(32, 1, 5, 5), (32,), (64, 32, 5, 5), (64,), (512, 1024), (512,), (10, 512), (10,)]
    assert [tuple(leaf.shape) for leaf in accuracy.cnn().parameters()] == shapes
    assert accuracy.cnn()(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_a_loader_draws_as_many_rows_as_asked_for_or_all_in_their_order():
    def loader(count, rows, apart=None):
        def load(batch_size=None):
            made = DataLoader(TensorDataset(torch.arange(count)), batch_size or 5, shuffle=True)
            return made if apart is None else (made, apart)

        return drawing(SimpleNamespace(load_train_data=load), rows=rows)

    assert [len(batch) for (batch,) in loader(7, 40)()] == [5] * 8
    assert [len(batch) for (batch,) in loader(7, 40)(10)] == [10] * 4
    assert torch.equal(torch.cat([b for (b,) in loader(12, None)(4)]), torch.arange(12))
    apart = DataLoader(TensorDataset(torch.arange(7)), 5)
    train, other = loader(30, 40, apart)()
    assert [len(batch) for (batch,) in train] == [5] * 8
    assert other is apart


@pytest.mark.full
@pytest.mark.parametrize("method", ["local", "per-fedavg"])
def test_a_system_that_does_nothing_has_the_accuracy_of_the_start(
    method, dataset, data, tmp_path, monkeypatch
):
    for folder, file, text in (
        ("servers", "serverstill.py", _SERVER),
        ("trainmodel", "models.py", ""),
    ):
        (tmp_path / "system" / "flcore" / folder).mkdir(parents=True)
        (tmp_path / "system" / "flcore" / folder / file).write_text(text)
    pair = PAIRS[method]._replace(server="serverstill.Still", split=False)
    monkeypatch.setitem(PAIRS, method, pair)
    e = experiment(dataset, method, **{"adapt-steps": 0})
    command = [sys.executable, "-m", "benchmarks.pfllib_peer", str(tmp_path)]
    found = accuracy.race(e, command)
    network = model_for(accuracy.fedavg_like(e), data.kind)
    start = network.init(torch_generator(0, Stream.MODEL))
    each = []
    for rows in data.test.rows:
        x, y = data.test.take(torch.from_numpy(rows))
        each.append(float((network.apply(start, x).argmax(1) == y).float().mean()))
    assert found.theirs.accuracy == pytest.approx(np.mean(each))
    assert (found.method, found.seed) == (method, 0)
    assert found.ours.seconds > 0 < found.theirs.seconds


@pytest.mark.full
def test_what_cannot_be_imported_is_said(dataset, tmp_path):
    command = [sys.executable, "-m", "benchmarks.pfllib_peer", str(tmp_path)]
    with pytest.raises(PeerMissing, match="No module named 'flcore'"):
        accuracy.race(experiment(dataset), command)


def test_personal_models_are_scored_each_on_its_clients_rows(dataset, data):
    # A network that always says the client's commonest class is right as often as that is it.
    e = experiment(dataset)
    wide = Mlp(784, 100, 10)
    still = {name: torch.zeros_like(leaf) for name, leaf in wide.named_parameters()}
    personal, shares = [], []
    for rows in data.test.rows:
        counts = torch.bincount(data.test.y[rows], minlength=10)
        personal.append([*(still | {"fc.bias": counts.float()}).values()])
        shares.append(float(counts.max() / counts.sum()))
    left = {"common": personal[0], "personal": personal}
    found = accuracy.accuracy_of_theirs(PAIRS["local"], left, e, data)
    assert found == pytest.approx(np.mean(shares))


def test_personal_models_are_scored_behind_their_gates(dataset, data):
    # All of the network's representations are 0, and each client's gate shows another column.
    still = {n: torch.zeros_like(leaf) for n, leaf in Mlp(784, 100, 10).named_parameters()}
    columns, gates, shares = torch.zeros(10, 100), [], []
    for client, rows in enumerate(data.test.rows):
        counts = torch.bincount(data.test.y[rows], minlength=10)
        columns[:, client] = counts
        shares.append(float(counts.max() / counts.sum()))
        shown = {"personalized_conditional_input": torch.eye(100)[client]}
        valve = SimpleNamespace(Conditional_gamma=torch.zeros_like, Conditional_beta=lambda v: v)
        gates.append(gate_of(SimpleNamespace(CoV=valve, **shown)))
    personal = [[*(still | {"fc.weight": columns}).values()]] * len(gates)
    left = {"common": personal[0], "personal": personal, "gates": gates}
    found = accuracy.accuracy_of_theirs(PAIRS["gpfl"], left, experiment(dataset), data)
    assert found == pytest.approx(np.mean(shares))


def test_the_table_has_means_spreads_and_ratios():
    races = [
        Race("ditto", 0, RunScore(0.90, 0.010), RunScore(0.92, 0.040)),
        Race("ditto", 1, RunScore(0.94, 0.030), RunScore(0.92, 0.040)),
        Race("fedavg", 0, RunScore(0.5, 0.1), RunScore(0.25, 0.2)),
    ]
    console = Console(width=200)
    with console.capture() as said:
        console.print(accuracy.table(races))
    lines = said.get().splitlines()
    ditto, fedavg = (next(line for line in lines if name in line) for name in ("ditto", "fedavg"))
    # The standard deviation of 90 and 94 is sqrt(8), and that of the differences -2 and 2, too;
    # Student's t with one degree of freedom is Cauchy's, with the quantile tan(0.475 pi).
    half = f"+0.00 +- {math.tan(0.475 * math.pi) * math.sqrt(8 / 2):.2f}"
    for cell in ("92.00 +- 2.83", "92.00 +- 0.00", half, " 20 ", "0.50"):
        assert cell in ditto
    for cell in ("50.00 ", "25.00 ", "+25.00 ", " 100 ", "0.50"):
        assert cell in fedavg
