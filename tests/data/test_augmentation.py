"""Augmentation of training rows: from the seed alone, on every engine, and of no other rows."""

import numpy as np
import pytest
import torch
from torch import nn

import engram
from engram.data.augmentations import AUGMENTATIONS, augmentation
from engram.data.federated import augmented
from engram.networks.registry import model
from engram.networks.vision import transforms
from engram.runs.run import Run
from engram.settings.errors import Refused
from engram.simulations.engine import simulate
from tests.samples import entry, sampled
from tests.support import small_of_any

pytestmark = pytest.mark.usefixtures("plug_ins")


def convolutions():
    head = (nn.Flatten(), nn.Linear(144, 8), nn.ReLU(), nn.Linear(8, 10))
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), *head)


def normed():
    layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(144, 10))


def trained(folder, *, engine="vectorized", **settings):
    """Returns the model in the end, and what each round's row says."""
    quick = {"num-rounds": 2, "clients-per-round": 3, "adapt-steps": 1, "augment": "flip-crop"}
    e = small_of_any(**{"eta": 0.05} | quick | settings)
    simulate(e, folder, engine=engine)
    record = Run.open(folder)
    return record.load_checkpoint().model, record.rows()


CASES = [("mlp", "local-moml"), ("convolutions", "fedavg"), ("normed", "local-moml")]


@pytest.mark.parametrize(("network", "method"), sampled(CASES, CASES[:2]))
def test_every_engine_draws_the_same(network, method, tmp_path):
    for make in (convolutions, normed):
        model(make)
    own = {"model": network, "method": method, "memory": "carry"}
    if network == "normed":
        own["local-epochs"] = 1
    one, rows = trained(tmp_path / "one", **own)
    other, _ = trained(tmp_path / "other", engine="sequential", **own)
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    plain, _ = trained(tmp_path / "plain", augment="", **own)
    assert any((one[name] - plain[name]).abs().max() > 1e-4 for name in one)
    assert ({way for row in rows[1:] for way in row["ways"]} == {"dense"}) == (network == "mlp")


@pytest.mark.full
def test_who_else_trains_does_not_matter(tmp_path, monkeypatch):
    model(normed)
    own = {"model": "normed", "local-epochs": 1, "partition": "dirichlet", "batch-size": 3}
    whole, _ = trained(tmp_path / "whole", **own)
    monkeypatch.setattr("engram.cohort.trainer.block_size._BLOCK", 1)  # one client at a time
    apart, _ = trained(tmp_path / "apart", **own)
    torch.testing.assert_close(whole, apart, rtol=1e-5, atol=1e-5)


def test_test_rows_stay_as_they_are(tmp_path):
    (_, one), (_, other) = (trained(tmp_path / name, augment=name) for name in ("", "flip-crop"))
    scores = ("loss", "loss-common", "accuracy")
    assert [one[0][key] for key in scores] == [other[0][key] for key in scores]
    assert one[2]["loss"] != other[2]["loss"]


def test_a_row_is_changed_by_its_own_seed():
    rows = torch.rand(2, 3, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    seeds = torch.tensor([[5, 6, 7], [8, 9, 5]])
    before = torch.get_rng_state()
    found = augmented(AUGMENTATIONS["flip-crop"], rows, seeds)
    assert torch.equal(torch.get_rng_state(), before)
    alone = augmented(AUGMENTATIONS["flip-crop"], rows[1, 2:], seeds[0, :1])
    assert torch.equal(found[1, 2], alone[0])
    assert not torch.equal(found, augmented(AUGMENTATIONS["flip-crop"], rows, seeds + 100))
    for row, changed in zip(rows.flatten(0, 1), found.flatten(0, 1), strict=True):
        padded = nn.functional.pad(row, (2, 2, 2, 2))
        crops = [padded[:, i : i + 16, j : j + 16] for i in range(5) for j in range(5)]
        assert any(torch.equal(changed, x) for crop in crops for x in (crop, crop.flip(-1)))


def test_transforms_of_torchvision_are_taken_as_they_are(tmp_path):
    rng, v2 = np.random.default_rng(0), transforms()
    clients = [(rng.random((30, 3, 8, 8), dtype=np.float32), np.arange(30) % 2) for _ in range(3)]
    change = v2.Compose([v2.RandomHorizontalFlip(), v2.ColorJitter(0.4, 0.4), v2.RandomErasing(1)])
    given = {"augment": change, "num_rounds": 2, "seed": 3}
    one, other = (
        engram.simulate(clients, out=tmp_path / engine, engine=engine, **given)
        for engine in ("vectorized", "sequential")
    )
    torch.testing.assert_close(one.model, other.model, rtol=1e-5, atol=1e-5)


def test_several_inputs_are_changed_together(tmp_path):
    @augmentation
    def swap(row):
        return (row[1], row[0]) if torch.rand(()) < 0.5 else row

    x = torch.arange(12.0).view(2, 3, 2)
    one, other = augmented(swap, (x, -x), torch.arange(6).view(2, 3))
    assert torch.equal(one, -other)
    assert 0 < (one < 0).sum() < 11


def numpy_noise(row):
    return row + float(np.random.default_rng().random())


NO_AUGMENTATIONS = [
    ("flip-crop", True, "augment must take a row of inputs, got ValueError: rows must be im"),
    (lambda row: row[:, 1:], False, r"augment must be rows as they were, .*\(1, 8, 8\)"),
    (lambda row: row.double(), False, "augment must be rows as they were"),
    (numpy_noise, False, "augment must be a function that draws from torch alone"),
    (
        "flip-crp",
        False,
        r"must be one of flip-crop, .* \(did you mean flip-crop\?\), got 'flip-crp'",
    ),
]


def test_other_functions_are_refused(tmp_path):
    rng = np.random.default_rng(0)
    rows = [(rng.random((30, 4), dtype=np.float32), np.arange(30) % 2) for _ in range(3)]
    for change, of_rows, message in NO_AUGMENTATIONS:
        data = {"data": rows} if of_rows else {}
        with entry(message), pytest.raises(Refused, match=f"^[^\n]*{message}[^\n]*$"):
            engram.simulate(**data, augment=change, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
