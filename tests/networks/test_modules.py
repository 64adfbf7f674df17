"""Networks of users under every method: both engines compute the same, whatever the network is."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from engram.client.memory import RamStore
from engram.contract_check import engines_differ
from engram.data.lazy import Lazy
from engram.data.readers.in_memory import hold
from engram.networks.module import from_module
from engram.networks.registry import model
from engram.runs.run import Run
from engram.settings.errors import DataError, Refused
from engram.simulations.engine import simulate
from tests.networks.networks import CASES, CLIENTS, LARGER, clients, register_functions
from tests.samples import entry, sampled
from tests.support import small_of_any, trainer


@pytest.fixture(autouse=True)
def _registered(plug_ins):
    register_functions()


def experiment(case, **settings):
    make, arrays, own = CASES[case]
    if not isinstance(make, str):
        model(make, case)
    make = make if isinstance(make, str) else case
    # The third round is trained a third way, if there is one, and by clients who remember.
    given = {"num_clients": CLIENTS, "partition": "natural", "num_rounds": 3, "eval_every": 3}
    given |= {"clients_per_round": 3, "adapt_shots": 3, "adapt_steps": 1, "eta": 0.05}
    dataset = hold({"task": clients()} | arrays)
    return small_of_any(**{"model": make, "dataset": dataset} | given | own | settings)


EVERYWHERE = ("local-moml", "fedavg")
OTHERS = {"batch norm and dropout": "fedbn", "built-in resnet": "fedbn", "recurrent": "ditto"}
OTHERS |= {"convolutions": "ditto", "sequential": "fedpac", "group norm": "fedpac"}
QUICK = [(case, OTHERS.get(case, "local-moml")) for case in CASES]
TABLE = [*QUICK, *product(CASES, ["local-moml"])]  # whose steps have those of FedAvg in them


@pytest.mark.parametrize(("case", "method"), sampled(TABLE, QUICK))
def test_both_engines_compute_the_same(case, method, tmp_path):
    assert engines_differ(experiment(case, method=method, memory="carry"), tmp_path) == ""
    first, *_, last = Run.open(tmp_path / "vectorized").rows()
    assert np.isfinite(last["train-loss-median"])
    assert last["loss"] != first["loss"]


def test_training_losses_are_those_of_evaluated_rounds(tmp_path):
    # The built-in dense networks and the CNN have them in every round.
    for model_, rounds in (("linear", [1, 2, 3, 4, 5]), ("sequential", [2, 4, 5])):
        model(CASES["sequential"][0], "sequential")
        often = {"method": "fedavg", "num_rounds": 5, "eval_every": 2}
        simulate(experiment("sequential", model=model_, **often), tmp_path / model_)
        rows = Run.open(tmp_path / model_).rows()[1:]
        found = [row["round"] for row in rows if np.isfinite(row.get("train-loss", np.nan))]
        assert found == rounds
        assert all(row["clients"] == 3 for row in rows)


def kept_by(checkpoint, client):
    """The arrays that a client keeps, or None."""
    store = RamStore()
    store.restore(checkpoint.memories)
    return store.load(client, before=9)


def all_kept(checkpoint):
    return [memory for c in range(CLIENTS) if (memory := kept_by(checkpoint, c))]


def test_running_statistics_follow_the_models_that_are_moved(tmp_path):
    simulate(experiment("batch norm and dropout", method="ditto"), tmp_path / "run")
    checkpoint = Run.open(tmp_path / "run").load_checkpoint()
    assert all_kept(checkpoint)[0]["kept/own/norm.running_mean"].any()
    assert checkpoint.model["model/norm.running_mean"].any()
    assert (checkpoint.model["model/norm.running_var"] != 1).all()


def test_batch_norm_is_each_clients_own_under_fedbn(tmp_path):
    simulate(experiment("batch norm and dropout", method="fedbn"), tmp_path / "run")
    checkpoint = Run.open(tmp_path / "run").load_checkpoint()
    layers, kinds = ("first", "second", "head"), ("weight", "bias")
    assert checkpoint.model.keys() == {f"model/{at}.{kind}" for at in layers for kind in kinds}
    own = ("weight", "bias", "running_mean", "running_var")
    assert all_kept(checkpoint)[0].keys() == {f"kept/personal model/norm.{kind}" for kind in own}
    with pytest.raises(Refused, match=r"has batch norm with running statistics .not with"):
        simulate(experiment("group norm", method="fedbn"), tmp_path / "none")


class _Head(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.head = nn.Linear(36, outputs)

    def forward(self, x):
        return self.head(x.flatten(1))


def _flat(outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(36, outputs))


@pytest.mark.parametrize(("kind", "layer"), [(_flat, "1"), (_Head, "head")])
def test_a_classifier_with_other_outputs_than_classes_is_refused(kind, layer, tmp_path):
    for outputs, engine in ((1, "vectorized"), (2, "sequential"), (7, "vectorized")):
        model(lambda outputs=outputs: kind(outputs), "other")
        words = (
            r"outputs must be of 2 axes or more, the second of 3 classes \(if there are more, set "
            rf"num-classes\), for classification, got \(2, {outputs}\), and targets \(2,\); the "
            rf"last layer is Linear '{layer}'$"
        )
        with entry(outputs, engine), pytest.raises(Refused, match=words):
            simulate(experiment("convolutions", model="other"), tmp_path / "run", engine=engine)
        assert not (tmp_path / "run").exists()
    e = experiment("convolutions", model="other", num_classes=7, num_rounds=1)
    simulate(e, tmp_path / "run")


def test_the_way_to_train_is_found_out_and_recorded(tmp_path):
    simulate(experiment("group norm", method="fedavg", num_rounds=6), tmp_path / "run")
    first, *others = [row["ways"] for row in Run.open(tmp_path / "run").rows()[1:]]
    assert first in ({"in-turn": 1}, {"vmap": 1})
    assert others == [first] * 5
    simulate(experiment("sequential", method="fedavg"), tmp_path / "dense")
    assert Run.open(tmp_path / "dense").rows()[1]["ways"] == {"dense": 1}


def test_adapters_are_sent_or_stay_and_the_frozen_model_does_neither(tmp_path):
    e = experiment("low-rank adapters", method="fedavg", personal="*lora_B*")
    simulate(e, tmp_path / "run")
    checkpoint = Run.open(tmp_path / "run").load_checkpoint()
    place = "base_model.model.transformer.h.{}.attn.c_attn.lora_{}.default.weight"
    assert sorted(checkpoint.model) == ["model/" + place.format(0, "A")]
    name = "kept/personal model/" + place.format(0, "B")
    own = [memory[name] for memory in all_kept(checkpoint)]
    assert len(own) > 1
    assert not torch.equal(own[0], own[1])


def test_batch_norm_with_a_batch_of_one_row_is_refused(tmp_path):
    model(lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, 3)), "normed")
    with pytest.raises(Refused, match=r"batch-size must be at least 2 for this network.*, got 1"):
        simulate(experiment("convolutions", model="normed", batch_size=1), tmp_path / "run")
    fixed = experiment("convolutions", model="normed", batch_size=1, statistics="fixed")
    assert simulate(fixed, tmp_path / "fixed")["accuracy"] >= 0


@pytest.mark.parametrize(
    ("case", "whose"),
    [
        ("built-in lstm", "num-classes or y has"),
        ("recurrent", "the network's embedding has"),
        ("low-rank adapters", "the network's embedding has"),
        ("two inputs", "the network's embedding has"),
    ],
)
def test_tokens_that_the_network_does_not_know_are_refused(case, whose, tmp_path, monkeypatch):
    make, arrays, own = CASES[case]
    last = next(name for name in ("x.codes", "x.input_ids", "x") if name in arrays)
    most = int(arrays[last].max())
    monkeypatch.setitem(CASES, "more", (make, arrays | {last: arrays[last] + 1}, own))
    words = f"x must be tokens 0 to {most}, as {whose} them, got '1 to {most + 1}'"
    for engine in ("vectorized", "sequential"):
        with pytest.raises(DataError, match=words):
            simulate(experiment("more"), tmp_path / "run", engine=engine)
        assert not (tmp_path / "run").exists()
    if case == "built-in lstm":
        e = experiment("more", num_classes=8, num_rounds=1, eval_every=1)
        assert simulate(e, tmp_path / "run")["scored"] == CLIENTS


@pytest.mark.parametrize("case", ["built-in lstm", "recurrent"])
def test_tokens_of_rows_that_are_read_as_they_are_drawn_are_checked_then(case, monkeypatch):
    make, arrays, own = CASES[case]

    def read(rows):
        return arrays["x"][rows] + 7 * (rows == 33)[:, None]

    x = Lazy(read, arrays["x"][:1], np.arange(30 * CLIENTS))
    monkeypatch.setitem(CASES, "drawn", (make, arrays | {"x": x}, own))
    data = trainer(experiment("drawn")).data
    words = "client 1: row 33 cannot be read: x must be tokens 0 to 6, as .* has them, got '7 to"
    with pytest.raises(DataError, match=words):
        [part.take(torch.arange(len(part.y))) for part in (data.train, data.test)]


def test_a_token_that_a_module_makes_up_itself_is_not_looked_up_in_another_clients_embedding():
    class Coded(nn.Module):
        def __init__(self):
            super().__init__()
            self.codes = nn.Embedding(5, 3)

        def forward(self, x):
            return self.codes(x[:, 0].long())

    made = from_module(Coded, torch.zeros(2, 3))
    assert made.tokens is None
    params = made.init(torch.Generator())
    stacked = {name: torch.stack([leaf, leaf + 1]) for name, leaf in params.items()}
    x = torch.tensor([[1.0, 9, 9], [5, 0, 0], [-1, 0, 0]])
    found = torch.func.vmap(made.apply)(stacked, torch.stack([x, x]))
    assert torch.equal(found[:, 0], stacked["codes.weight"][:, 1])
    assert found[:, 1:].isnan().all()


def test_an_epochs_last_batch_of_one_row_is_left_out_where_one_cannot_be_normalized(tmp_path):
    model(lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, 3)), "normed")
    own = {"method": "fedavg", "batch_size": 17, "local_epochs": 2, "validation_fraction": 0}
    e = experiment("convolutions", model="normed", **own)  # 18 rows a client
    found = []
    for engine in ("vectorized", "sequential"):
        simulate(e, tmp_path / engine, engine=engine)
        found.append(Run.open(tmp_path / engine).load_checkpoint().model)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)
    draws = trainer(e).sampler.draw([0, 1], 1)
    assert draws.sizes.tolist() == [[17, 17]] * 2
    for row in draws.rows.view(4, 17).tolist():
        assert len(set(row)) == 17
    e = experiment("batch norm and dropout", **own)  # over the pixels of a row
    assert trainer(e).sampler.draw([0], 1).sizes.tolist() == [[17, 1, 17, 1]]


def test_a_network_of_torchvision_on_both_engines(tmp_path, monkeypatch):
    name = "squeezenet1_1"
    monkeypatch.setitem(CASES, name, (f"torchvision:{name}", LARGER, {}))
    few = {"num_rounds": 1, "clients_per_round": 2, "adapt_steps": 0, "eval_every": 1}
    few["eta"] = 5e-4  # batch norm of four rows makes rounding grow, the more the longer a step is
    e = experiment(name, method="fedavg", local_steps=1, batch_size=4, **few)
    assert engines_differ(e, tmp_path) == ""
    found = Run.open(tmp_path / "vectorized").load_checkpoint().model
    assert found["model/classifier.1.weight"].shape[:2] == (3, 512)
