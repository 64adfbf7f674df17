"""APFL: what it is at either end of its mixture, and a step by hand."""

import pytest
import torch

from engram.federated.apfl import apfl
from engram.federated.local_only import local_only, own_model
from engram.meta.fedavg import fedavg
from tests.engram.federated.quadratics import client, minimum, moments, quadratic, steps
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


def test_an_adaptive_weight_moves_along_the_gradient_of_the_mixtures_loss():
    # From 0.3, of which the client has kept 0.2 more: d L(m) / d alpha = <grad L(m), v - w>.
    rule, (a, b) = apfl(quadratic, eta=0.1, alpha=0.3, adaptive=True), moments(client(3))
    w = W | {"own-alpha/alpha": torch.tensor(0.2, dtype=torch.float64)}
    mixed = 0.5 * (W["own/w"] + W["w"])
    assert_same(rule.served(w), {"w": mixed}, atol=1e-12)
    found = steps(rule, w, [client(3)])
    fixed = steps(apfl(quadratic, eta=0.1, alpha=0.5), W, [client(3)])
    assert_same({name: found[name] for name in W}, fixed, atol=1e-12)
    expected = 0.5 - 0.1 * (a @ mixed - b) @ (W["own/w"] - W["w"])
    assert 0 < expected < 1
    assert float(found["own-alpha/alpha"]) == pytest.approx(float(expected) - 0.3)


@pytest.mark.parametrize(("near", "end"), [("w", 0.0), ("own/w", 1.0)])
def test_an_adaptive_weight_goes_to_the_better_model_and_no_further(near, end):
    best, zero = minimum([3]), torch.zeros((), dtype=torch.float64)
    w = {"w": best + 1, "own/w": best + 1, "own-alpha/alpha": zero}
    w[near] = best
    rule = apfl(quadratic, eta=0.01, alpha=0.5, adaptive=True)
    u = rule.init(w, None)
    for _ in range(200):  # of alpha alone
        _, u = rule.direction(w, u, (client(3),))
    assert float(u["alpha"]) == pytest.approx(end, abs=0.05)
    assert 0 <= float(u["alpha"]) <= 1


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
