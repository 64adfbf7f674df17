"""What the last layer of a network takes: of built-in networks and of modules."""

import pytest
import torch
from torch import nn
from torch.func import vmap

from engram.networks.built_in import build_model
from engram.networks.module import from_module
from tests.networks.networks import IMAGES, Characters, Normed, TiedCharacters, TwoInputs
from tests.samples import entry
from tests.support import assert_same

X = torch.from_numpy(IMAGES["x"][:4])
WORDS = torch.zeros(4, 8, dtype=torch.int64)
KEY = torch.zeros((), dtype=torch.int64)


class Twice(nn.Module):
    """Its last layer is called twice."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(36, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.head(self.head(self.body(x.flatten(1))))


class Positions(Characters):
    """It takes all rows' positions as rows of its last layer."""

    def forward(self, tokens):
        found = self.net(self.embed(tokens))[0]
        return self.head(found.flatten(0, 1)).view(*tokens.shape, 7).mean(1)


def sequential():
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3))


def built_in(kind, **given):
    return build_model(kind, input_shape=(1, 6, 6), outputs=3, **given)


NETWORKS = {
    "mlp": (lambda: built_in("mlp", hidden=(7, 5)), X, "dense2", 5),
    "linear": (lambda: built_in("linear"), X, "dense0", 36),
    "cnn": (lambda: built_in("cnn", hidden=(5,)), X, "dense1", 5),
    "sequential": (lambda: from_module(sequential, X), X, "dense1", 8),
    "batch norm and dropout": (lambda: from_module(Normed, X), X, "head", 4),
    "two inputs": (
        lambda: from_module(TwoInputs, (X[:, 0, 0, :3], WORDS[:, 0])),
        (X[:, 0, 0, :3], WORDS[:, 0]),
        "head",
        4,
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_representation_is_what_the_last_layer_takes(name):
    make, x, head, width = NETWORKS[name]
    model = make()
    params = model.init(torch.Generator().manual_seed(1))
    weight, bias = params[f"{head}.weight"], params[f"{head}.bias"]
    outputs, z = model.represent(params, x, None, None, False)
    assert z.shape == (4, width) == (4, model.width)
    torch.testing.assert_close(outputs, nn.functional.linear(z, weight, bias))
    assert torch.equal(outputs, model.apply(params, x))
    shift = torch.linspace(-1, 1, width)
    shifted, same = model.represent(params, x, None, shift, False)
    assert torch.equal(same, z)
    torch.testing.assert_close(shifted, nn.functional.linear(z + shift, weight, bias))
    assert torch.equal(model.apply(params, x), outputs)  # nothing of it stays behind
    many, _ = vmap(lambda s: model.represent(params, x, None, s, False))(shift.repeat(2, 1))
    torch.testing.assert_close(many[1], shifted)
    gate = torch.stack([shift + 0.5, shift])
    gated, same = model.represent(params, x, None, gate, False)
    assert torch.equal(same, z)
    opened = nn.functional.relu(z * (shift + 0.5) + shift)
    torch.testing.assert_close(gated, nn.functional.linear(opened, weight, bias))
    many, _ = vmap(lambda s: model.represent(params, x, None, s, False))(gate.repeat(2, 1, 1))
    torch.testing.assert_close(many[1], gated)


def test_in_training_it_is_that_of_training():
    model = from_module(Normed, X)
    params = model.init(torch.Generator().manual_seed(1))
    outputs, z = model.represent(params, X, KEY, None, True)
    assert torch.equal(outputs, model.train(params, X, KEY))
    assert not torch.equal(z, model.represent(params, X, None, None, False)[1])


def test_where_the_last_layer_takes_no_single_vector_there_is_none():
    for make, x in [
        (Characters, WORDS),  # a vector for each position
        (TiedCharacters, WORDS),
        (Positions, WORDS),
        (Twice, X),
        (lambda: nn.Linear(6, 3), X[:, 0, 0]),  # no layer of its own
    ]:
        with entry(make):
            model = from_module(make, x)
            assert (model.represent, model.width) == (None, 0)


def test_gradients_by_a_shift_are_those_of_the_layers_input():
    model = from_module(Normed, X)
    params = model.init(torch.Generator().manual_seed(1))
    shift = torch.zeros(4, requires_grad=True)
    outputs, _ = model.represent(params, X, None, shift, False)
    (found,) = torch.autograd.grad(outputs.sum(), shift)
    assert_same({"": found}, {"": 4 * params["head.weight"].sum(0)}, atol=1e-5)
