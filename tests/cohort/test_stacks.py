"""Stacks of flat dense networks, and images with the channels last: the same numbers."""

import pytest
import torch
from torch import nn

from engram.cohort.dense_gradients import CROSS_ENTROPY, SQUARED_ERROR
from engram.cohort.sequential import channels_last
from engram.cohort.stacked_models import Layout, dense_stacks, outputs, stacked_loss
from engram.networks.built_in import build_model
from tests.support import assert_same, cross_entropy, gen, squared_error

R, B, K = 2, 2, 5


@pytest.mark.parametrize(
    ("kind", "output", "lift"),
    [("mlp", SQUARED_ERROR, squared_error), ("linear", CROSS_ENTROPY, cross_entropy)],
)
def test_flat_dense_networks_are_the_lifted_ones(kind, output, lift):
    model = build_model(kind, input_shape=(3,), outputs=2, hidden=(5, 4))
    models = [model.init(gen(s)) for s in range(R * B)]
    layout = Layout.of(models[0])
    flat = {"flat": layout.pack(models)["flat"].view(R, B, -1)}
    lifted = {
        name: torch.stack([m[name] for m in models]).unflatten(0, (R, B)) for name in models[0]
    }
    x = torch.randn(R, B, K, 3, generator=gen(1))
    y = torch.rand(R, B, K, 2, generator=gen(2)).softmax(-1)
    fast, slow = dense_stacks(layout, output), stacked_loss(lift(model))
    torch.testing.assert_close(fast(flat, (x, y)), slow(lifted, (x, y)))
    first, other = fast.gradient(flat, (x, y)), slow.gradient(lifted, (x, y))
    product = fast.hessian_product(flat, (x, y), flat)
    other_product = slow.hessian_product(lifted, (x, y), lifted)
    for found, expected in ((first, other), (product, other_product)):
        leaves = layout.unpack(found)
        for name in leaves:
            torch.testing.assert_close(leaves[name], expected[name].flatten(0, 1))
    shown = outputs(layout, flat, x)
    torch.testing.assert_close(shown[1, 0], model.apply(models[B], x[1, 0]))


def test_one_of_flat_networks_is_taken_by_name():
    model = build_model("mlp", input_shape=(3,), outputs=2, hidden=(5,))
    models = [model.init(gen(s)) for s in range(R)]
    layout = Layout.of(models[0])
    flat = layout.pack(models)["flat"]
    for r in range(R):
        assert_same(layout.one({"flat": flat[r]}), models[r])
    # Also where only one is seen at a time, and something is differentiated.
    x = torch.randn(R, K, 3, generator=gen(9))
    first = torch.func.grad(lambda w, x: model.apply(layout.one(w), x).square().sum())
    gradients = torch.func.vmap(first)({"flat": flat}, x)
    named = torch.func.grad(lambda w, x: model.apply(w, x).square().sum())
    assert_same(layout.one({"flat": gradients["flat"][1]}), named(models[1], x[1]), atol=1e-5)


def test_convolutions_keep_images_with_the_channels_last():
    for channels in (1, 3):
        x, filters = torch.randn(2, channels, 6, 5), torch.randn(4, channels, 3, 3)
        found = channels_last(x)
        assert torch.equal(found, x)
        assert found.stride() == (30 * channels, 1, 5 * channels, channels)
        assert nn.functional.conv2d(found, filters).stride() == (4 * 4 * 3, 1, 3 * 4, 4)
    text = torch.randn(2, 3, 4)
    assert channels_last(text) is text
