"""FedDyn: its first-order condition, its server's step, and where it rests."""

import pytest
import torch

from engram.aggregates import Update, mean
from engram.federated.feddyn import feddyn, feddyn_server
from engram.meta.fedavg import fedavg
from engram.tree import part
from tests.engram.federated.quadratics import client, minimum, moments, quadratic, rounds, steps
from tests.support import DIM, assert_same, draw

CLIENTS = [0, 1, 2, 3]
START = {"w": draw(1, DIM), "own-gradient/w": draw(3, DIM)}


def test_the_slope_is_the_gradient_at_the_minimum_of_the_penalized_loss():
    # (1) is least where A w - b - h + alpha (w - w_t) = 0.
    (a, b), alpha = moments(client(3)), 0.4
    after = steps(feddyn(quadratic, eta=0.3, alpha=alpha), START, [client(3)] * 300)
    eye = torch.eye(DIM, dtype=torch.float64)
    known = b + START["own-gradient/w"] + alpha * START["w"]
    assert_same({"w": after["w"]}, {"w": torch.linalg.solve(a + alpha * eye, known)}, atol=1e-8)
    assert_same(part(after, "own-gradient/"), {"w": a @ after["w"] - b}, atol=1e-8)


def test_as_alpha_goes_to_0_a_first_rounds_steps_become_fedavgs():
    start = START | {"own-gradient/w": torch.zeros(DIM, dtype=torch.float64)}
    batches = [client(3 + k) for k in range(5)]
    plain = steps(fedavg(quadratic, eta=0.1), {"w": START["w"]}, batches)["w"]
    apart = [
        (steps(feddyn(quadratic, eta=0.1, alpha=alpha), start, batches)["w"] - plain).norm()
        for alpha in (1e-2, 1e-4, 1e-6)
    ]
    # The difference is of order alpha.
    assert apart[0] / apart[1] == pytest.approx(100, rel=0.1)
    assert apart[1] / apart[2] == pytest.approx(100, rel=0.01)


def test_the_servers_step_by_hand():
    # h = -alpha (2/5) (mean - w_t), and so w_t+1 = mean + 2/5 (mean - w_t); then once more.
    model, ends = {"w": draw(1, DIM)}, [draw(3, DIM), draw(4, DIM)]
    middle, server = sum(ends) / 2, feddyn_server(clients=5)
    updates = [Update({"w": w}, 1.0) for w in ends]
    first, state = server.merge(model, server.init(model), updates)
    push = 0.4 * (middle - model["w"])
    assert_same(first, {"w": middle + push}, atol=1e-12)
    second, _ = server.merge(first, state, updates)
    assert_same(second, {"w": middle + push + 0.4 * (middle - first["w"])}, atol=1e-12)


def test_it_comes_to_the_common_minimum_where_fedavg_does_not():
    best = {"w": minimum(CLIENTS)}
    settings = {"clients": CLIENTS, "count": 60, "local_steps": 20}
    rule = feddyn(quadratic, eta=0.2, alpha=0.5)
    found, _, kept = rounds(rule, feddyn_server(4), **settings)
    assert_same(found, best, atol=1e-4)
    gradients = [part(kept[i], "own-gradient/")["w"] for i in CLIENTS]
    torch.testing.assert_close(sum(gradients), torch.zeros_like(gradients[0]), rtol=0, atol=1e-3)
    drifted, _, _ = rounds(fedavg(quadratic, eta=0.2), mean(), **settings)
    assert (drifted["w"] - best["w"]).norm() > 0.01


def test_impossible_values_are_refused():
    with pytest.raises(ValueError, match=r"eta must be positive, got 0.0"):
        feddyn(quadratic, eta=0.0, alpha=1.0)
    with pytest.raises(ValueError, match=r"alpha must be positive, got 0.0"):
        feddyn(quadratic, eta=1.0, alpha=0.0)
    with pytest.raises(ValueError, match="num-clients must be at least 1, got 0"):
        feddyn_server(0)
