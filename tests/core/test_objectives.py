"""Objectives: derivatives by all parameters, or by some of them, whichever way they are taken."""

import pytest
import torch
from torch.testing import assert_close

from engram.cohort.dense_gradients import product_by_tangents
from engram.core.derivatives import (
    LossWithDerivatives,
    by_autograd,
    by_functions,
    by_hand,
    hessian_product,
)
from engram.networks.built_in import build_model
from engram.networks.losses import mean_loss
from engram.scoring.tasks import REGRESSION
from tests.samples import entry
from tests.support import draw

NET = build_model("mlp", input_shape=(4,), outputs=1, hidden=(3,))
LOSS = mean_loss(NET, REGRESSION)
HEAD = frozenset({"dense1.weight", "dense1.bias"})
W = {n: x.double() for n, x in NET.init(torch.Generator().manual_seed(1)).items()}
BATCH = draw(1, 5, 4), draw(2, 5)
V = {n: draw(9, *x.shape) for n, x in W.items()}
FUNCTIONS = by_functions(LOSS)


def plain_gradient(w, batch):
    """The formulas of the network above."""
    x, y = batch
    z = x @ w["dense0.weight"].T + w["dense0.bias"]
    delta = 2 * (z.relu() @ w["dense1.weight"].T + w["dense1.bias"] - y[:, None]) / len(y)
    below = delta @ w["dense1.weight"] * (z > 0)
    return {
        "dense0.weight": below.T @ x,
        "dense0.bias": below.sum(0),
        "dense1.weight": delta.T @ z.relu(),
        "dense1.bias": delta.sum(0),
    }


MADE = {
    "functions": FUNCTIONS,
    "autograd": by_autograd(LOSS),
    "hand": by_hand(LossWithDerivatives(LOSS, FUNCTIONS.gradient, hessian_product(LOSS), 0)),
    "tangents": FUNCTIONS._replace(hessian_product=product_by_tangents(plain_gradient)),
}


def test_gradients_by_some_parameters_are_those_by_all():
    whole = torch.func.grad(LOSS)(W, BATCH)
    for way, found in MADE.items():
        with entry(way):
            assert_close(found.gradient(W, BATCH), whole)
            for names in (HEAD, W.keys() - HEAD):
                part = found.gradient(W, BATCH, names)
                assert_close(part, {n: x for n, x in whole.items() if n in names})


def test_hessian_products_are_those_of_the_whole_matrix():
    blocks = torch.func.hessian(LOSS)(W, BATCH)
    expected = {n: sum((blocks[n][m] * V[m]).flatten(W[n].ndim).sum(-1) for m in W) for n in W}
    for way, found in MADE.items():
        with entry(way):
            assert_close(found.hessian_product(W, BATCH, V), expected)


@pytest.mark.parametrize("way", ["functions", "autograd"])
def test_what_a_function_observes_comes_with_its_gradient(way):
    def pulled(w, target, batch):
        outputs, z = NET.represent(w, batch[0], None, None, True)
        far = (z.mean(0) - target).square().sum()
        return (outputs.squeeze(1) - batch[1]).square().mean() + far, {"mean": z.mean(0)}

    target = draw(3, 3)
    expected, seen = torch.func.grad(pulled, has_aux=True)(W, target, BATCH)
    for names in (None, HEAD, W.keys() - HEAD):
        found, observed = MADE[way].differentiate(pulled, names)(W, target, BATCH)
        assert_close(found, {n: x for n, x in expected.items() if names is None or n in names})
        assert_close(observed, seen)
        assert not observed["mean"].requires_grad
