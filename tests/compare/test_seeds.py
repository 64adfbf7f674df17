"""Runs over several seeds: every way of making them gives each seed the same score."""

import numpy as np
import pytest
import torch
from torch import nn

import engram
from tests.samples import sampled

ROUNDS = 6
QUICK = {"num_rounds": ROUNDS, "eval_every": ROUNDS, "batch_size": 8, "local_steps": 3}
QUICK |= {"metrics": ["log-loss"], "progress": False}


class Frozen(nn.Module):
    """A random first layer that is not trained."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 12)
        self.first.requires_grad_(False)
        self.head = nn.Linear(12, 2)

    def forward(self, x):
        return self.head((3 * self.first(x)).cos())


class Buffers(nn.Module):
    """Random features in a buffer, and their random order in another."""

    def __init__(self):
        super().__init__()
        self.register_buffer("waves", torch.randn(6, 12))
        self.register_buffer("order", torch.randperm(12))
        self.head = nn.Linear(12, 2)

    def forward(self, x):
        return self.head((x @ self.waves).cos()[:, self.order])


class Attributes(nn.Module):
    """Numbers drawn into attributes that PyTorch does not know of, and a function beside them."""

    def __init__(self, scaled=None):
        super().__init__()
        self.columns = torch.randperm(6)[:4].tolist()
        self.scaled = scaled or nn.Identity()
        self.scale = float(1 + 4 * torch.rand(()))
        self.head = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x):
        return self.head(self.scale * self.scaled(x[:, self.columns]))


class OwnDraw(nn.Module):
    """Initial parameters drawn by numpy, the same for every seed, and dropout."""

    def __init__(self):
        super().__init__()
        first = nn.Linear(6, 8)
        drawn = np.random.default_rng(5).normal(size=(8, 6)).astype(np.float32)
        first.weight = nn.Parameter(torch.from_numpy(drawn))
        self.net = nn.Sequential(first, nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, x):
        return self.net(x)


def unpicklable():
    return Attributes(lambda x: x / 2)


def clients():
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(30, 6)).astype(np.float32) for _ in range(3)]
    return [(x, (x[:, 0] * x[:, 1] > 0).astype(int)) for x in rows]


NETWORKS = [Frozen, Buffers, Attributes, unpicklable, OwnDraw, "mlp"]


@pytest.mark.parametrize("make", sampled(NETWORKS, [Buffers, unpicklable, "mlp"]))
def test_a_seeds_score_is_the_same_by_itself_in_a_comparison_and_in_a_search(make, tmp_path):
    data, quick = clients(), {**QUICK, "model": make, "clients_per_round": 3}
    tuned = engram.tune(data, methods="fedavg", trials=1, seeds=2, out=tmp_path / "t", **quick)
    last = tuned.table("fedavg").iloc[-1]
    assert last["round"] == ROUNDS
    quick |= {"eta": last["eta"]}
    compared = engram.compare(data, methods="fedavg", seeds=2, out=tmp_path / "c", **quick)
    each = [
        engram.simulate(data, method="fedavg", seed=seed, out=tmp_path / str(seed), **quick)
        for seed in (0, 1)
    ]
    # A search compares losses, which have no upper end, by their medians over clients.
    (beside, alone) = (
        [run.metrics["validation-log-loss-median"].iloc[-1] for run in runs]
        for runs in (compared.runs["fedavg"], each)
    )
    assert abs(alone[0] - alone[1]) > 1e-3  # seeds differ
    np.testing.assert_allclose(beside, alone, atol=1e-6)
    np.testing.assert_allclose(last["score"], np.mean(alone), atol=1e-5)
