"""LocalMOML: its updates (6) and (7) in closed form, and the paper's special cases."""

import pytest
import torch

from engram.meta.local_moml import local_moml, per_fedavg
from engram.tree import add_scaled
from tests.support import DIM, assert_same, batch, draw, moments, quadratic

ALPHA, BETA, ETA = 0.3, 0.25, 0.7
EYE = torch.eye(DIM, dtype=torch.float64)


@pytest.mark.parametrize("hessian", ["exact", "finite-difference", "first-order"])
def test_step_equals_closed_form_on_a_quadratic(hessian):
    # grad L_i(w) = A_i w - b_i and hess L_i = A_i, so (6) and (7) are matrix products. On a
    # quadratic the central difference is exact but for rounding: eps^(2/3), about 4e-11,
    # relative to numbers of order 1, times alpha * eta.
    batches = batch(1), batch(2), batch(3)
    (a1, b1), (a2, _), (a3, b3) = map(moments, batches)
    w, u = draw(10, DIM), draw(11, DIM)
    u_expected = (1 - BETA) * u + BETA * (w - ALPHA * (a1 @ w - b1))
    factor = EYE if hessian == "first-order" else EYE - ALPHA * a2
    w_expected = w - ETA * factor @ (a3 @ u_expected - b3)

    rule = local_moml(quadratic, alpha=ALPHA, beta=BETA, eta=ETA, hessian=hessian)
    drawn = [0, 2] if hessian == "first-order" else [0, 1, 2]
    w_new, u_new = rule.step({"w": w}, {"w": u}, tuple(batches[i] for i in drawn))

    torch.testing.assert_close(u_new["w"], u_expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(w_new["w"], w_expected, rtol=0, atol=1e-10)


def test_a_memory_starts_from_one_adaptation_step():
    a0, b0 = moments(batch(4))
    w = draw(10, DIM)
    rule = local_moml(quadratic, alpha=ALPHA, beta=BETA, eta=ETA)
    assert rule.needs_initial_batch
    u = rule.init({"w": w}, batch(4))
    torch.testing.assert_close(u["w"], w - ALPHA * (a0 @ w - b0), rtol=0, atol=1e-12)


def test_beta_one_is_per_fedavg_and_forgets_the_memory():
    # Sec. 5.1: w <- w - eta (I - alpha hess L2(w)) grad L3(w - alpha grad L1(w)).
    batches = batch(1), batch(2), batch(3)
    (a1, b1), (a2, _), (a3, b3) = map(moments, batches)
    w = draw(10, DIM)
    expected = w - ETA * (EYE - ALPHA * a2) @ (a3 @ (w - ALPHA * (a1 @ w - b1)) - b3)
    one = local_moml(quadratic, alpha=ALPHA, beta=1.0, eta=ETA)
    other = per_fedavg(quadratic, alpha=ALPHA, eta=ETA)
    assert not one.needs_initial_batch
    assert not one.state_is_model
    for rule, memory in ((one, draw(11, DIM)), (other, draw(12, DIM))):
        stepped, _ = rule.step({"w": w}, {"w": memory}, batches)
        torch.testing.assert_close(stepped["w"], expected, rtol=0, atol=1e-10)


def test_alpha_zero_and_beta_one_is_gradient_descent():
    rule = local_moml(quadratic, alpha=0.0, beta=1.0, eta=ETA)
    batches, w = (batch(1), batch(2), batch(3)), {"w": draw(10, DIM)}
    stepped, _ = rule.step(w, {"w": draw(11, DIM)}, batches)
    assert_same(stepped, add_scaled(w, -ETA, torch.func.grad(quadratic)(w, batches[2])))


def test_the_meta_gradient_is_that_of_the_adapted_loss():
    # With beta = 1 and S1 = S2, (7) is the gradient of w -> L3(w - alpha grad L1(w)), here of a
    # loss that is no quadratic.
    def quartic(params, data):
        return (quadratic(params, data) ** 2) + params["w"].pow(4).sum()

    w = {"w": 0.3 * draw(10, DIM)}
    first, third = batch(1), batch(3)

    def adapted_loss(v):
        return quartic(add_scaled(v, -0.05, torch.func.grad(quartic)(v, first)), third)

    expected = add_scaled(w, -ETA, torch.func.grad(adapted_loss)(w))
    stepped, _ = per_fedavg(quartic, alpha=0.05, eta=ETA).step(w, w, (first, first, third))
    assert_same(stepped, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"alpha": -0.1}, r"alpha must be at least 0, got -0\.1"),
        ({"beta": 0.0}, r"beta must be in \(0, 1\], got 0\.0"),
        ({"beta": 1.5}, r"beta must be in \(0, 1\], got 1\.5"),
        ({"eta": float("nan")}, "eta must be positive, got nan"),
        ({"hessian": "none"}, "hessian must be one of exact, first-order, finite-difference"),
    ],
)
def test_refuses_settings_out_of_range(setting, message):
    with pytest.raises(ValueError, match=message):
        local_moml(quadratic, **({"alpha": 0.1, "beta": 0.5, "eta": 0.1} | setting))
