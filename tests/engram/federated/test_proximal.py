"""FedProx, Ditto and MR-MTL: what they are without their proximal term, and where they rest."""

import pytest
import torch
from torch.func import grad, vmap

from engram.aggregates import mean
from engram.derivatives import LossWithDerivatives
from engram.federated.local_only import local_only, own_model
from engram.federated.proximal import ditto, fedprox, mr_mtl
from engram.meta.fedavg import fedavg
from engram.models import begun
from tests.engram.federated.quadratics import client, minimum, moments, quadratic, rounds, steps
from tests.support import DIM, assert_same, batch, draw

CLIENTS = [0, 1, 2]
ETA = 0.1


def started(rule):
    """A client's arrays in some round: its own model is another one than the common one."""
    w = begun({"w": draw(10, DIM)}, rule.companions)
    return w | {name: draw(11, DIM) for name in w if name.startswith("own/")}


def many(count=6):
    return [batch(20 + h) for h in range(count)]


def test_fedprox_without_its_term_is_fedavg():
    rule = fedprox(quadratic, eta=ETA, strength=0.0)
    plain = fedavg(quadratic, eta=ETA)
    assert_same(steps(rule, started(rule), many()), steps(plain, started(plain), many()))


def test_ditto_without_its_term_is_fedavg_and_the_local_model_side_by_side():
    rule, local = ditto(quadratic, eta=ETA, strength=0.0), local_only(quadratic, eta=ETA)
    w = steps(rule, started(rule), many())
    plain = fedavg(quadratic, eta=ETA)
    assert_same({"w": w["w"]}, steps(plain, started(plain), many()))
    assert_same(own_model(w), own_model(steps(local, started(local), many())))


def test_the_common_model_of_ditto_does_not_depend_on_its_term():
    ends = [
        rounds(ditto(quadratic, eta=ETA, strength=s), mean(), CLIENTS, 5, local_steps=3)[0]
        for s in (0.0, 2.0)
    ]
    assert_same(*ends)


def test_mr_mtl_without_its_term_is_the_local_model_and_sends_it():
    rule, local = mr_mtl(quadratic, eta=ETA, strength=0.0), local_only(quadratic, eta=ETA)
    _, _, kept = rounds(rule, mean(), CLIENTS, 5, local_steps=3)
    _, _, alone = rounds(local, mean(), CLIENTS, 5, local_steps=3)
    for i in CLIENTS:
        assert_same(own_model(kept[i]), own_model(alone[i]))
        assert_same({"w": kept[i]["w"]}, own_model(kept[i]))


def test_alone_a_client_comes_to_its_own_minimum_and_the_common_model_stays():
    rule = local_only(quadratic, eta=0.3)
    model, _, kept = rounds(rule, mean(), CLIENTS, 10, local_steps=40)
    assert_same(model, {"w": draw(7, DIM)}, atol=1e-12)
    for i in CLIENTS:
        assert_same(own_model(kept[i]), {"w": minimum([i])}, atol=1e-8)


@pytest.mark.parametrize("strength", [0.3, 2.0])
@pytest.mark.parametrize("make", [fedprox, ditto, mr_mtl])
def test_steps_come_to_the_minimum_of_the_penalized_loss(make, strength):
    # Of w'Aw/2 - b'w + strength/2 |w - w_t|^2: (A + strength) w = b + strength w_t.
    rule = make(quadratic, eta=0.3, strength=strength)
    start, (a, b) = started(rule), moments(client(3))
    w = steps(rule, start, [client(3)] * 300)
    eye = torch.eye(DIM, dtype=torch.float64)
    expected = torch.linalg.solve(a + strength * eye, b + strength * start["w"])
    found = w if make is fedprox else own_model(w)
    assert_same(found, {"w": expected}, atol=1e-8)


def test_one_step_of_ditto_by_hand():
    rule = ditto(quadratic, eta=ETA, strength=0.7)
    start, ((a, b), rows) = started(rule), (moments(client(3)), client(3))
    w, v = start["w"], start["own/w"]
    stepped = steps(rule, start, [rows])
    assert_same({"w": stepped["w"]}, {"w": w - ETA * (a @ w - b)}, atol=1e-12)
    expected = v - ETA * (a @ v - b + 0.7 * (v - w))
    assert_same(own_model(stepped), {"w": expected}, atol=1e-12)


def test_mr_mtl_comes_to_the_minimum_of_its_objective():
    # Of mean_i L_i(v_i) + 2/2 |v_i - mean_j v_j|^2: (A_i + 2) v_i = b_i + 2 m, and m their mean.
    rule = mr_mtl(quadratic, eta=0.3, strength=2.0)
    model, _, kept = rounds(rule, mean(), CLIENTS, 25, local_steps=20)
    eye, parts = torch.eye(DIM, dtype=torch.float64), [moments(client(i)) for i in CLIENTS]
    inverse = [torch.linalg.inv(a + 2 * eye) for a, _ in parts]
    known = sum(r @ b for r, (_, b) in zip(inverse, parts, strict=True)) / 3
    middle = torch.linalg.solve(eye - 2 * sum(inverse) / 3, known)
    assert_same(model, {"w": middle}, atol=1e-3)
    for i, (r, (_, b)) in enumerate(zip(inverse, parts, strict=True)):
        assert_same(own_model(kept[i]), {"w": r @ (b + 2 * middle)}, atol=1e-3)


def test_a_strength_of_each_stacked_model_is_kept_apart():
    for make in (fedprox, ditto, mr_mtl):
        each = vmap(grad(quadratic))
        loss = LossWithDerivatives(vmap(quadratic), each, each, leading=1)
        both = make(loss, eta=torch.tensor([0.1, 0.05]), strength=torch.tensor([0.2, 1.5]))
        start = started(both)
        w = steps(
            both,
            {n: x.expand(2, *x.shape) for n, x in start.items()},
            [tuple(x.expand(2, *x.shape) for x in rows) for rows in many(3)],
        )
        for i, (eta, strength) in enumerate([(0.1, 0.2), (0.05, 1.5)]):
            alone = steps(make(quadratic, eta=eta, strength=strength), start, many(3))
            assert_same({n: x[i] for n, x in w.items()}, alone, atol=1e-7)


@pytest.mark.parametrize(
    ("make", "values", "words"),
    [
        (fedprox, {"eta": 0.0, "strength": 1.0}, "eta must be positive, got 0.0"),
        (fedprox, {"eta": 1.0, "strength": -1.0}, "mu must be at least 0, got -1.0"),
        (ditto, {"eta": 1.0, "strength": -1.0}, "lambda must be at least 0, got -1.0"),
        (mr_mtl, {"eta": 1.0, "strength": -1.0}, "lambda must be at least 0, got -1.0"),
    ],
)
def test_impossible_values_are_refused(make, values, words):
    with pytest.raises(ValueError, match=words):
        make(quadratic, **values)
    with pytest.raises(ValueError, match="eta must be positive"):
        local_only(quadratic, eta=0.0)
