"""Noisy sums of clipped gradients, beside a loop over rows in plain torch."""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from engram.core.types import Sampled
from engram.guards.row_noise import row_noise
from engram.guards.row_sums import dense_sums, summed
from tests.samples import entry

ROWS, INPUTS, CLASSES = 6, 5, 3
NAMES = ("dense0.weight", "dense0.bias", "dense1.weight", "dense1.bias")


def network():
    torch.manual_seed(0)
    layers = nn.ModuleDict({"dense0": nn.Linear(INPUTS, 4), "dense1": nn.Linear(4, CLASSES)})
    return {name: leaf.detach() for name, leaf in layers.state_dict().items()}


def cross_entropy(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)


def loss(w, batch):
    hidden = (batch[0] @ w["dense0.weight"].T + w["dense0.bias"]).relu()
    return cross_entropy(hidden @ w["dense1.weight"].T + w["dense1.bias"], batch[1])


def rows(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = 3 * torch.randn(ROWS, INPUTS, generator=generator)
    return x, torch.randint(CLASSES, (ROWS,), generator=generator)


def by_a_loop(w, batch, taken, bound, names, loss=loss):
    """sum_i taken_i g_i min(1, C / |g_i|), a row at a time by torch.autograd."""
    total = {name: torch.zeros_like(w[name]) for name in names}
    for x, y, there in zip(*batch, taken, strict=True):
        at = {name: leaf.clone().requires_grad_() for name, leaf in w.items()}
        found = torch.autograd.grad(loss(at, (x[None], y[None])), [at[name] for name in names])
        length = math.sqrt(sum(float(g.square().sum()) for g in found))
        for name, g in zip(names, found, strict=True):
            total[name] += float(there) * g * min(1.0, bound / length)
    return total


SUMS = {"rows": summed(loss), "products": dense_sums(cross_entropy, 2)}
TAKEN = torch.tensor([1.0, 0, 1, 1, 0, 1])


def close(one, other):
    assert one.keys() == other.keys()
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_a_sum_is_that_of_a_loop_over_rows():
    w, batch = network(), rows()
    for names in [NAMES, NAMES[2:], NAMES[:1], NAMES[1:2]]:
        some = None if names is NAMES else set(names)
        for bound in [0.5, 100.0]:
            expected = by_a_loop(w, batch, TAKEN, bound, sorted(names))
            for way, sums in SUMS.items():
                with entry(names, bound, way):
                    close(sums(w, batch, TAKEN, bound, some), expected)


@pytest.mark.parametrize("sums", SUMS)
def test_clients_are_summed_together_by_vmap(sums):
    both = [network(), {name: 1.5 * leaf for name, leaf in network().items()}]
    batches = [rows(0), rows(1)]
    stacked = {name: torch.stack([w[name] for w in both]) for name in NAMES}
    x, y = (torch.stack(leaves) for leaves in zip(*batches, strict=True))
    found = vmap(lambda w, x, y: SUMS[sums](w, (x, y), TAKEN, 0.5, None))(stacked, x, y)
    for i, (w, batch) in enumerate(zip(both, batches, strict=True)):
        alone = by_a_loop(w, batch, TAKEN, 0.5, NAMES)
        close({name: leaf[i] for name, leaf in found.items()}, alone)


@pytest.mark.parametrize("sums", SUMS)
def test_a_row_moves_the_sum_by_at_most_the_bound_whatever_it_holds(sums):
    for value in [1e30, float("inf"), float("nan")]:
        with entry(value):
            w, (x, y) = network(), rows()
            worst = x.clone()
            worst[2] = value
            here, away = torch.ones(ROWS), torch.ones(ROWS)
            away[2] = 0
            one = SUMS[sums](w, (worst, y), here, 0.5, None)
            other = SUMS[sums](w, (worst, y), away, 0.5, None)
            gap = math.sqrt(sum(float((one[n] - other[n]).square().sum()) for n in NAMES))
            assert gap <= 0.5 * (1 + 1e-5)


@pytest.mark.parametrize("sums", SUMS)
def test_a_step_is_the_noisy_sum_over_the_expected_number_of_rows(sums):
    w, batch = network(), rows()
    size = sum(leaf.numel() for leaf in w.values())
    normal = torch.randn(size, generator=torch.Generator().manual_seed(3))
    step = Sampled(batch, TAKEN, normal, torch.tensor(2.5))
    found = row_noise(0.5, 1.5).rows(None, SUMS[sums]).gradient(w, step)
    expected, at = by_a_loop(w, batch, TAKEN, 0.5, sorted(NAMES)), 0
    for name in sorted(NAMES):  # the order of names
        part = normal[at : at + w[name].numel()].view(w[name].shape)
        expected[name], at = (expected[name] + 1.5 * 0.5 * part) / 2.5, at + part.numel()
    close(found, {name: expected[name] for name in found})


def test_rows_of_a_batch_drop_different_units():
    """A row's key is its own, wherever it stands: alike rows have different gradients."""

    def keyed(w, batch):
        return (w["w"] * batch[2]).sum() * batch[0].sum()

    x, y = torch.ones(3, 1), torch.zeros(3)
    batch = (x, y, torch.tensor([7, 5, 4]))
    found = summed(keyed)({"w": torch.ones(1)}, batch, torch.tensor([1.0, 0, 1]), 1e9, None)
    assert float(found["w"]) == 7 + 4


def test_rows_are_seen_in_no_other_way():
    for look in ["loss", "hessian_product", "criterion", "differentiate"]:
        with entry(look):
            objective = row_noise(1.0, 1.0).rows(None, SUMS["rows"])
            with pytest.raises(ValueError, match="one gradient of its rows alone"):
                getattr(objective, look)(network(), rows())


def test_any_module_is_summed():
    """A convolution, whose rows' gradients are formed."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6, CLASSES))
    w = {name: leaf.detach() for name, leaf in module.named_parameters()}
    x, y = rows()

    def of(w, batch):
        return cross_entropy(functional_call(module, w, (batch[0],)), batch[1])

    found = summed(of)(w, (x[:, None], y), TAKEN, 0.5, None)
    close(found, by_a_loop(w, (x[:, None], y), TAKEN, 0.5, list(w), of))
