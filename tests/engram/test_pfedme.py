"""pFedMe and FedAvg in closed form on quadratics."""

import pytest
import torch

from engram.meta.fedavg import fedavg
from engram.meta.fine_tune import fine_tune
from engram.meta.pfedme import pfedme
from tests.support import DIM, assert_same, batch, draw, moments, quadratic

EYE = torch.eye(DIM, dtype=torch.float64)
ALPHA, ETA, STRENGTH = 0.02, 0.05, 15.0


def test_inner_steps_equal_closed_form_on_a_quadratic():
    # theta* = (A + lambda I)^-1 (b + lambda w), and each inner step contracts the distance to it
    # by I - alpha (A + lambda I), from theta = w.
    data, w, steps = batch(1), draw(10, DIM), 4
    a, b = moments(data)
    system = a + STRENGTH * EYE
    fixed = torch.linalg.solve(system, b + STRENGTH * w)
    shrink = torch.linalg.matrix_power(EYE - ALPHA * system, steps)
    theta = fixed + shrink @ (w - fixed)
    rule = pfedme(quadratic, alpha=ALPHA, eta=ETA, strength=STRENGTH, inner_steps=steps)
    w_new, theta_new = rule.step({"w": w}, {"w": draw(11, DIM)}, (data,))
    assert_same(theta_new, {"w": theta}, atol=1e-10)
    assert_same(w_new, {"w": w - ETA * STRENGTH * (w - theta)}, atol=1e-10)


def test_many_inner_steps_reach_the_moreau_envelope():
    # The envelope's gradient at w is lambda (w - theta*).
    data, w = batch(1), draw(10, DIM)
    a, b = moments(data)
    fixed = torch.linalg.solve(a + STRENGTH * EYE, b + STRENGTH * w)
    rule = pfedme(quadratic, alpha=ALPHA, eta=ETA, strength=STRENGTH, inner_steps=200)
    w_new, theta = rule.step({"w": w}, {"w": w}, (data,))
    assert_same(theta, {"w": fixed}, atol=1e-10)
    assert_same(w_new, {"w": w - ETA * STRENGTH * (w - fixed)}, atol=1e-10)


def test_the_inner_gradient_moves_with_theta():
    # Reusing the gradient at w would give theta - w = -(1 - (1 - alpha lambda)^n) / lambda grad,
    # whatever the curvature; ours must differ from it by more than rounding.
    data, w, steps = batch(1), draw(10, DIM), 5
    gradient = torch.func.grad(quadratic)({"w": w}, data)["w"]
    reused = w - (1 - (1 - ALPHA * STRENGTH) ** steps) / STRENGTH * gradient
    rule = pfedme(quadratic, alpha=ALPHA, eta=ETA, strength=STRENGTH, inner_steps=steps)
    _, theta = rule.step({"w": w}, {"w": w}, (data,))
    assert (theta["w"] - reused).abs().max() > 1e-4


def test_fedavg_is_gradient_descent_on_a_quadratic():
    data, w = batch(1), draw(10, DIM)
    a, b = moments(data)
    w_new, state = fedavg(quadratic, eta=ETA).step({"w": w}, {}, (data,))
    assert state == {}
    assert_same(w_new, {"w": w - ETA * (a @ w - b)}, atol=1e-12)


def test_fine_tuning_equals_closed_form_and_leaves_the_model_alone():
    data, w = batch(1), draw(10, DIM)
    a, b = moments(data)
    fixed = torch.linalg.solve(a, b)
    expected = fixed + torch.linalg.matrix_power(EYE - 0.1 * a, 10) @ (w - fixed)
    before = w.clone()
    tuned = fine_tune(quadratic, lr=0.1, steps=10)({"w": w}, data)
    assert_same(tuned, {"w": expected}, atol=1e-10)
    assert torch.equal(w, before)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"alpha": 0.0}, "alpha must be positive"),
        ({"eta": -1.0}, "eta must be positive"),
        ({"strength": 0.0}, "lambda must be positive"),
        ({"strength": 100.0}, r"alpha \* lambda must be below 2, got 2\.0"),
        ({"inner_steps": 0}, "inner-steps must be at least 1"),
    ],
)
def test_refuses_settings_out_of_range(setting, message):
    good = {"alpha": ALPHA, "eta": ETA, "strength": STRENGTH, "inner_steps": 3}
    with pytest.raises(ValueError, match=message):
        pfedme(quadratic, **(good | setting))
