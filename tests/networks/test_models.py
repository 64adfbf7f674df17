"""The networks compute what torch.nn's modules of the same weights compute."""

import pytest
import torch
from torch import nn
from torch.func import vmap

from engram.networks.built_in import build_model
from tests.samples import entry
from tests.support import cross_entropy


def generator():
    return torch.Generator().manual_seed(0)


def test_networks_are_the_modules_of_the_same_weights():
    dense = nn.Flatten(), nn.Linear(64 * 2 * 2, 6), nn.ReLU(), nn.Linear(6, 3)
    convolutions = (
        *(nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
    )
    for kind, shape, layers in (
        ("mlp", (4, 8, 8), dense),
        ("cnn", (3, 8, 8), (*convolutions, *dense)),
    ):
        with entry(kind):
            model = build_model(kind, input_shape=shape, outputs=3, hidden=(6,))
            params, module = model.init(generator()), nn.Sequential(*layers)
            module.load_state_dict(dict(zip(module.state_dict(), params.values(), strict=True)))
            x = torch.randn(7, *shape, generator=generator())
            torch.testing.assert_close(model.apply(params, x), module(x), rtol=1e-4, atol=1e-5)
            assert model.parameters == sum(leaf.numel() for leaf in params.values())


def test_starts_uniform_within_one_over_root_fan_in():
    for kind in ["linear", "mlp", "cnn"]:
        with entry(kind):
            model = build_model(kind, input_shape=(1, 8, 8), outputs=10, hidden=(40,))
            params = model.init(generator())
            again = model.init(generator())
            for name, leaf in params.items():
                weight = params[name.replace("bias", "weight")]
                bound = weight[0].numel() ** -0.5
                assert leaf.abs().max() <= bound
                if leaf.numel() >= 40:
                    assert leaf.abs().max() > 0.8 * bound
                assert torch.equal(leaf, again[name])


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_second_derivatives_exist_for_a_stack_of_models(kind):
    model = build_model(kind, input_shape=(1, 4, 4), outputs=3, hidden=(4,))
    loss = cross_entropy(model)
    params = {name: leaf.expand(2, *leaf.shape) for name, leaf in model.init(generator()).items()}
    data = torch.randn(2, 5, 1, 4, 4, generator=generator()), torch.tensor([[0, 1, 2, 0, 1]] * 2)

    def product(p, d):
        gradient = torch.func.grad(loss)
        return torch.func.vjp(lambda q: gradient(q, d), p)[1](gradient(p, d))[0]

    products = vmap(product)(params, data)
    assert all(leaf.isfinite().all() and leaf.abs().sum() > 0 for leaf in products.values())


def test_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match=r"input of a cnn must be .*, got \(64,\)"):
        build_model("cnn", input_shape=(64,), outputs=3)
    with pytest.raises(ValueError, match="model must be one of mlp, cnn, linear, got 'rnn'"):
        build_model("rnn", input_shape=(64,), outputs=3)
