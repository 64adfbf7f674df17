"""Mixtures of predictions against probabilities, and losses whose rows are weighted."""

import math

import pytest
import torch
from torch import nn

from engram.core.method import Served
from engram.core.types import Weighted
from engram.networks.built_in import build_model
from engram.networks.losses import mean_loss
from engram.networks.module import from_module
from engram.scoring.mixtures import loss_of, mixture, row_losses
from engram.scoring.tasks import TASKS
from tests.samples import entry
from tests.support import assert_same, draw

PI = torch.tensor([[0.2, 0.8], [1.0, 0.0]], dtype=torch.float64)  # two clients, of two models


def test_a_mixture_predicts_the_weighted_mean_of_its_models_predictions():
    for targets, predict in {
        "classes": lambda z: z.softmax(-1),
        "tokens": lambda z: z.softmax(-1),
        "labels": torch.sigmoid,
        "values": lambda z: z,
        "times": lambda z: (1 - z.sigmoid()).cumprod(-1),
    }.items():
        with entry(targets):
            shape = (2, 4, 5, 3) if targets == "tokens" else (2, 4, 3)
            outputs = [3 * draw(1, *shape), 3 * draw(2, *shape)]
            found = predict(mixture(targets, outputs, PI))
            one, other = (predict(z) for z in outputs)
            assert_same({0: found[0]}, {0: 0.2 * one[0] + 0.8 * other[0]}, atol=1e-12)
            assert_same({0: found[1]}, {0: one[1]}, atol=1e-12)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_mean_is_the_loss_with_equal_weights(task):
    outputs = {"next-token": nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3)))}
    make = outputs.get(task.name, nn.Linear(4, 3))
    network = from_module(make, draw(1, 5, 4).float())
    y = {"values": draw(2, 5, 3), "labels": draw(2, 5, 3) > 0}.get(task.targets)
    y = torch.tensor([0, 2, 1, 1, 0]) if y is None else y.float()
    y = torch.stack([y, y.roll(1)], 1) if task.targets in ("tokens", "times") else y
    loss, w = mean_loss(network, task), network.init(torch.Generator())
    batch = draw(1, 5, 4).float(), y
    rows = row_losses(loss, w, batch)
    assert rows.shape == (5,)
    for i in range(5):
        alone = tuple(leaf[i : i + 1] for leaf in batch)
        assert float(rows[i]) == pytest.approx(float(loss(w, alone)), rel=1e-5)
    equal = Weighted(batch, torch.full((5,), 0.2))
    assert float(loss(w, equal)) == pytest.approx(float(loss(w, batch)), rel=1e-5)


def test_a_client_is_charged_the_mixtures_negative_log_likelihood_or_the_least_loss():
    network = build_model("linear", input_shape=(4,), outputs=3, hidden=())
    models = tuple(
        {n: x.double() for n, x in network.init(torch.Generator().manual_seed(i)).items()}
        for i in range(2)
    )
    loss, batch = mean_loss(network, TASKS["classification"]), (draw(1, 6, 4), torch.arange(6) % 3)
    pi = torch.tensor([0.3, 0.7], dtype=torch.float64)
    outputs = [network.apply(model, batch[0])[None] for model in models]
    said = mixture("classes", outputs, pi[None])[0]
    expected = nn.functional.cross_entropy(said, batch[1])
    torch.testing.assert_close(loss_of(Served(models, pi), loss, batch), expected)
    least = min(float(loss(model, batch)) for model in models)
    assert math.isclose(float(loss_of(Served(models), loss, batch)), least)
