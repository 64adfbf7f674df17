"""APFL: what it is at either end of its mixture, and a step by hand."""

import pytest

from engram.federated.apfl import apfl
from engram.federated.local_only import local_only, own_model
from engram.meta.fedavg import fedavg
from tests.engram.federated.quadratics import client, moments, quadratic, steps
from tests.support import DIM, assert_same, batch, draw

W = {"w": draw(10, DIM), "own/w": draw(11, DIM)}
BATCHES = [batch(20 + h) for h in range(6)]


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_the_common_model_is_fedavgs(alpha):
    w = steps(apfl(quadratic, eta=0.1, alpha=alpha), W, BATCHES)
    assert_same({"w": w["w"]}, steps(fedavg(quadratic, eta=0.1), {"w": W["w"]}, BATCHES))


def test_with_alpha_0_clients_are_served_by_fedavg():
    rule = apfl(quadratic, eta=0.1, alpha=0.0)
    w = steps(rule, W, BATCHES)
    assert_same(rule.served(w), {"w": w["w"]})
    assert_same(own_model(w), own_model(W))


def test_with_alpha_1_clients_are_served_by_their_local_models():
    rule = apfl(quadratic, eta=0.1, alpha=1.0)
    w = steps(rule, W, BATCHES)
    alone = steps(local_only(quadratic, eta=0.1), W, BATCHES)
    assert_same(rule.served(w), own_model(alone))


def test_a_step_by_hand():
    rule, (a, b) = apfl(quadratic, eta=0.1, alpha=0.3), moments(client(3))
    w = steps(rule, W, [client(3)])
    mixed = 0.3 * W["own/w"] + 0.7 * W["w"]
    assert_same(rule.served(W), {"w": mixed}, atol=1e-12)
    expected = W["own/w"] - 0.1 * 0.3 * (a @ mixed - b)
    assert_same(own_model(w), {"w": expected}, atol=1e-12)
    # So the mixture itself moves by (1 - alpha) eta and alpha^2 eta along the two gradients.
    served = mixed - 0.1 * (0.7 * (a @ W["w"] - b) + 0.09 * (a @ mixed - b))
    assert_same(rule.served(w), {"w": served}, atol=1e-12)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"eta": 0.0, "alpha": 0.5}, "eta must be positive, got 0.0"),
        ({"eta": 0.1, "alpha": 1.5}, r"alpha must be in \[0, 1\], got 1.5"),
        ({"eta": 0.1, "alpha": -0.5}, r"alpha must be in \[0, 1\], got -0.5"),
    ],
)
def test_impossible_values_are_refused(values, words):
    with pytest.raises(ValueError, match=words):
        apfl(quadratic, **values)
