"""Networks of users under every method: both engines compute the same, whatever the network is."""

import numpy as np
import pytest
import torch
from torch import nn

from engram.networks import model
from engram.tasks import loss
from federation.data.in_memory import hold
from federation.errors import DataError, Refused
from federation.methods import family
from server.record import RunRecord
from simulations.engine import simulate
from simulations.testing import engines_differ
from tests.support import small_of_any

CLIENTS = 4


class Normed(nn.Module):
    """A residual network with batch norm and dropout."""

    def __init__(self, norm=nn.BatchNorm2d):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = norm(4)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.norm(self.first(x)).tanh()
        x = x + self.second(x)
        return self.head(self.drop(x.mean((2, 3))))


class Characters(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.net = nn.LSTM(5, 6, num_layers=2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(6, 7)

    def forward(self, tokens):
        return self.head(self.net(self.embed(tokens))[0])


class TiedCharacters(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.mix = nn.TransformerEncoderLayer(6, 2, 8, 0.1, "gelu", batch_first=True)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.mix(self.embed(tokens), src_mask=mask, is_causal=True))


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.numbers, self.codes = nn.Linear(3, 4), nn.Embedding(5, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, numbers, codes):
        return self.head((self.numbers(numbers) + self.codes(codes)).tanh())


def clients():
    return np.repeat(np.arange(CLIENTS), 30)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=(30 * CLIENTS, *shape)).astype(np.float32)


def whole(most, *shape, seed=0):
    return np.random.default_rng(seed).integers(most, size=(30 * CLIENTS, *shape))


IMAGES = {"x": numbers(1, 6, 6), "y": np.arange(30 * CLIENTS) % 3}
TEXT = {"x": whole(7, 8), "y": whole(7, 8, seed=1)}
CASES = {
    "sequential": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3)),
        IMAGES,
        {},
    ),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64, 8),
            nn.ReLU(),
            nn.Linear(8, 3),
        ),
        IMAGES,
        {},
    ),
    "batch norm and dropout": (Normed, IMAGES, {}),
    "fixed statistics": (Normed, IMAGES, {"statistics": "fixed"}),
    "group norm": (lambda: Normed(lambda width: nn.GroupNorm(2, width)), IMAGES, {}),
    "recurrent": (Characters, TEXT, {"task": "next-token", "metrics": "perplexity,ece"}),
    "tied transformer": (TiedCharacters, TEXT, {"task": "next-token"}),
    "two inputs": (
        TwoInputs,
        {"x.numbers": numbers(3), "x.codes": whole(5), "y": np.arange(30 * CLIENTS) % 3},
        {},
    ),
    "regression": (
        lambda: nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 1)),
        {"x": numbers(5), "y": numbers(seed=1)},
        {"task": "regression"},
    ),
    "multi-label": (
        lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)),
        {"x": numbers(5), "y": whole(2, 4)},
        {"task": "multi-label", "metrics": "auc,f1,brier"},
    ),
    "huber": (
        lambda: nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2)),
        {"x": numbers(5), "y": numbers(2, seed=1)},
        {"task": "regression", "loss": "huber-loss", "metrics": "mae,r2"},
    ),
    "built-in resnet": ("resnet", IMAGES, {"hidden": "4,6"}),
    "built-in resnet with group norm": ("resnet", IMAGES, {"hidden": "4,6", "norm": "group"}),
    "built-in lstm": ("lstm", TEXT, {"hidden": "5,6", "task": "next-token"}),
    "built-in transformer": ("transformer", TEXT, {"hidden": "8,8", "task": "next-token"}),
}
if __name__ == "test_modules":  # as a plug-in of nodes: tests/network/test_modules.py
    loss(nn.functional.huber_loss)
    for _name, (_make, _, _) in CASES.items():
        if not isinstance(_make, str):
            model(_make, _name)

# Whole numbers that are not uint8, with the channels last, are images here.
RESNET18 = ("torchvision:resnet18", {"x": whole(3, 16, 16, 3), "y": IMAGES["y"]}, {})


@pytest.fixture(autouse=True)
def _registered(plug_ins):
    loss(nn.functional.huber_loss)


def experiment(case, **settings):
    make, arrays, own = CASES[case]
    if not isinstance(make, str):
        model(make, case)
        make = case
    given = {"num_clients": CLIENTS, "partition": "natural", "num_rounds": 5, "eval_every": 5}
    given |= {"clients_per_round": 3, "adapt_shots": 3, "adapt_steps": 2, "eta": 0.05}
    dataset = hold(arrays | {"task": clients()})
    return small_of_any(**{"model": make, "dataset": dataset} | given | own | settings)


@pytest.mark.parametrize("method", family("local"))
@pytest.mark.parametrize("case", CASES)
def test_both_engines_compute_the_same(case, method, tmp_path):
    assert engines_differ(experiment(case, method=method, memory="carry"), tmp_path) == ""
    losses = [row["train-loss"] for row in RunRecord.open(tmp_path / "vectorized").rows()[1:]]
    assert len(set(losses)) == 5  # it moves
    assert np.isfinite(losses).all()


@pytest.mark.parametrize("case", ["batch norm and dropout", "recurrent"])
def test_who_else_trains_does_not_matter(case, tmp_path, monkeypatch):
    whole = simulate(experiment(case), tmp_path / "whole")
    monkeypatch.setattr("client.training.trainer._BLOCK", 1)  # one client at a time
    apart = simulate(experiment(case), tmp_path / "apart")
    assert apart["loss"] == pytest.approx(whole["loss"], abs=1e-5)


def test_running_statistics_are_averaged(tmp_path):
    simulate(experiment("batch norm and dropout", method="fedavg"), tmp_path / "run")
    found = RunRecord.open(tmp_path / "run").load_checkpoint().model
    assert (found["norm.running_var"] != 1).all()
    assert (found["norm.running_mean"] != 0).all()


def test_a_classifier_with_too_few_outputs_is_refused_with_both_shapes(tmp_path):
    model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 2)), "narrow")
    e = experiment("convolutions", model="narrow")
    words = r"outputs must be of 2 axes, the last of 3 classes or more, for classification, got"
    with pytest.raises(Refused, match=words):
        simulate(e, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_way_to_train_is_found_out_and_recorded(tmp_path):
    simulate(experiment("group norm", method="fedavg", num_rounds=6), tmp_path / "run")
    found = [row["ways"] for row in RunRecord.open(tmp_path / "run").rows()[1:]]
    # Each is tried twice, in turn; the faster one is taken from then on.
    assert [list(ways) for ways in found[:4]] == [["in-turn"], ["vmap"]] * 2
    assert found[4] == found[5]
    simulate(experiment("sequential", method="fedavg"), tmp_path / "dense")
    assert RunRecord.open(tmp_path / "dense").rows()[1]["ways"] == {"dense": 1}


def test_batch_norm_with_a_batch_of_one_row_is_refused(tmp_path):
    model(lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, 3)), "normed")
    with pytest.raises(Refused, match=r"batch-size must be at least 2 for this network.*, got 1"):
        simulate(experiment("convolutions", model="normed", batch_size=1), tmp_path / "run")
    fixed = experiment("convolutions", model="normed", batch_size=1, statistics="fixed")
    assert simulate(fixed, tmp_path / "fixed")["accuracy"] >= 0


def test_characters_that_the_network_does_not_know_are_refused(tmp_path, monkeypatch):
    _, arrays, own = CASES["built-in lstm"]
    case = "lstm", arrays | {"x": arrays["x"] + 1}, own
    monkeypatch.setitem(CASES, "more characters", case)
    words = "x must be characters 0 to 6, as num-classes or y has them, got '1 to 7'"
    with pytest.raises(DataError, match=words):
        simulate(experiment("more characters"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    e = experiment("more characters", num_classes=8, num_rounds=1, eval_every=1)
    assert simulate(e, tmp_path / "run")["scored"] == CLIENTS


def test_a_network_of_torchvision_on_both_engines(tmp_path, monkeypatch):
    monkeypatch.setitem(CASES, "resnet18", RESNET18)
    models = []
    for engine in ("vectorized", "sequential"):
        few = {"num_rounds": 1, "clients_per_round": 2, "adapt_steps": 0, "eval_every": 1}
        e = experiment("resnet18", method="fedavg", local_steps=1, batch_size=4, **few)
        simulate(e, tmp_path / engine, engine=engine)
        models.append(RunRecord.open(tmp_path / engine).load_checkpoint().model)
    torch.testing.assert_close(*models, rtol=1e-5, atol=1e-5)
    assert models[0]["fc.weight"].shape == (3, 512)
