"""Convolutions of many networks as one: the same numbers as network by network."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.nn import functional

from engram.core.derivatives import all_at_once, by_cohorts, by_functions
from engram.networks.functional import Pure
from engram.networks.losses import cohort_losses, mean_loss
from engram.networks.module import from_module
from engram.scoring.tasks import TASKS
from tests.samples import entry

C, K = 3, 4


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding="same", bias=False)
        self.second = nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.norms = nn.ModuleList([nn.GroupNorm(2, 4), nn.GroupNorm(1, 4, affine=False)])
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = functional.relu(self.norms[0](self.first(x)))
        x = x + self.norms[1](self.second(x)).tanh()
        return self.head(x.mean(dim=(2, 3)))


class Viewed(nn.Module):
    """As many are written: functions, and a view by the number of rows."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 3, 3), nn.Conv2d(3, 4, 3, stride=2, dilation=1)
        self.first.weight.requires_grad_(False)  # a constant
        self.dense, self.head = nn.Linear(4, 5), nn.Linear(5, 3, bias=False)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.first(x)), 3, stride=2, padding=1)
        x = torch.sigmoid(self.second(x))
        x = x.view(x.size(0), -1)
        return self.head(functional.leaky_relu(self.dense(x)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.again = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)
        self.again.weight = self.first.weight
        self.end = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3))

    def forward(self, x):
        return self.end(self.again(self.first(x).relu()))


def sequential():
    return nn.Sequential(
        *(nn.Conv2d(2, 3, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(3, 2, 2), nn.GELU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 3)),
    )


def with_batch_norm():
    return nn.Sequential(
        *(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3)),
    )


NETWORKS = [Residual, Viewed, Tied, sequential, with_batch_norm, "fixed"]


def cohort(make):
    """A model, parameters of C networks, and a batch for each."""
    x = torch.randn(C, K, 2, 8, 8, generator=seeded(1))
    if make == "fixed":
        model = from_module(with_batch_norm, x[0], statistics="fixed")
    else:
        model = from_module(make, x[0])
    params = [model.init(seeded(i)) for i in range(C)]
    # Zeros of groups' shifts hide mistakes.
    w = {
        name: torch.stack([p[name] for p in params])
        + 0.1 * torch.rand(C, *params[0][name].shape, generator=seeded(2))
        for name in params[0]
    }
    return model, w, (x, torch.randint(3, (C, K), generator=seeded(3)))


def close(found, expected):
    assert set(found) == set(expected)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", NETWORKS)
def test_networks_and_derivatives_at_once_are_those_one_by_one(make):
    model, w, batch = cohort(make)
    x, _ = batch
    train = model.train or (lambda params, inputs, key: model.apply(params, inputs))
    one_by_one = [train({n: leaf[i] for n, leaf in w.items()}, x[i], None) for i in range(C)]
    found = model.together(w, x)
    torch.testing.assert_close(found, torch.stack(one_by_one), rtol=1e-4, atol=1e-5)
    loss = mean_loss(model, TASKS["classification"])
    losses = cohort_losses(model, TASKS["classification"])
    ours, theirs = by_cohorts(loss, losses), by_functions(loss)
    v = {name: leaf.cos() for name, leaf in w.items()}

    together = vmap(all_at_once(losses))(w, batch)
    torch.testing.assert_close(together, vmap(loss)(w, batch), rtol=1e-4, atol=1e-5)
    close(vmap(ours.gradient)(w, batch), vmap(theirs.gradient)(w, batch))
    close(vmap(ours.hessian_product)(w, batch, v), vmap(theirs.hessian_product)(w, batch, v))


def test_a_function_at_once_is_called_once_and_takes_what_is_common():
    calls = []

    def products(a, b):
        calls.append(a.shape)
        return {"product": a * b}

    a, b = torch.arange(6.0).view(3, 2), torch.tensor([1.0, -1.0])
    found = vmap(all_at_once(products), in_dims=(0, None))(a, b)

    assert torch.equal(found["product"], a * b)
    assert calls == [(3, 2)]
    assert torch.equal(all_at_once(products)(a[0], b)["product"], a[0] * b)


def test_running_statistics_at_once_are_those_one_by_one():
    model, w, (x, _) = cohort(with_batch_norm)

    found = model.statistics_together(w, x)

    close(found, vmap(model.statistics)(w, x))
    assert set(found) == {"1.running_mean", "1.running_var"}


class Gated(nn.Sequential):
    def forward(self, x):
        return super().forward(x * 2.0)


class Centered(nn.Sequential):
    def forward(self, x):
        return super().forward(x - x.mean(0))


class Transposed(nn.Sequential):
    def forward(self, x):
        return super().forward(x.mT)


class ByFirstRow(nn.Sequential):
    def forward(self, x):
        return super().forward(x + x[:1])


def test_networks_without_a_rule_are_left_to_others():
    x = torch.randn(K, 2, 8, 8, generator=seeded())
    assert from_module(sequential, x).together is not None
    for make in (
        *(partial(kind, *sequential()) for kind in (Gated, Centered, Transposed, ByFirstRow)),
        lambda: nn.Sequential(nn.Dropout(0.5), *sequential()),
    ):
        with entry(make):
            assert from_module(make, x).together is None


def test_group_norm_of_many_networks_is_that_of_each():
    # torch's own fails under vmap on images whose channels come last in memory.
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(15, 4, 6, 6, generator=generator)
    x = x.contiguous(memory_format=torch.channels_last).unflatten(0, (3, 5))
    scale, shift = torch.randn(2, 3, 4, generator=generator)

    def norm(x, scale, shift):
        with Pure(None):
            return functional.group_norm(x, 2, scale, shift, 1e-5)

    each = zip(x, [2] * 3, scale, shift, strict=True)
    expected = [functional.group_norm(*one, 1e-5) for one in each]
    torch.testing.assert_close(vmap(norm)(x, scale, shift), torch.stack(expected))
